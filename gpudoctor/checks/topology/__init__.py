"""topology.*: which CPUs and GPUs are near each other."""
