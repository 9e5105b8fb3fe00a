"""Everything that comes from the NVIDIA driver: the one client, one reader a section, collector and sampler processes."""
