"""Everything that comes from the NVIDIA driver: one client, a reader for each section, collector and sampler."""
