"""pcie.*: the PCIe links between GPUs and CPUs, from facts only. Measured copies are in link."""
