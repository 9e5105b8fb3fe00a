"""topology.*: where CPUs and GPUs lie beside each other."""
