"""Text that comes in and goes out: figures with units, JSON, YAML, host lists, stdout and stderr. Nothing of GPUs."""
