"""Text that comes in and goes out: figures with units, JSON, YAML, host lists, groups, streams. Nothing of GPUs."""
