"""Everything read from the NVIDIA driver: one client, a reader per section, the collector and sampler processes."""
