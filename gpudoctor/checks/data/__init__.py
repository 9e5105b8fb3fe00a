"""data.*: whether samples come as fast as the GPUs take them."""
