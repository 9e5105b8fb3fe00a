"""Which load a level puts on which devices: between facts and probes. How ranks measure is in `probes/`."""
