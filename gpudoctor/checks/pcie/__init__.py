"""pcie.*: the lanes between a GPU and its CPU, from facts. What copies reach is in link."""
