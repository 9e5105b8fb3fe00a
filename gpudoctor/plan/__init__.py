"""Which strategy will train a model on these GPUs, what it costs, and how to launch it."""
