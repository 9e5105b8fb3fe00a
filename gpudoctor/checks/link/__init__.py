"""link.*: measured copies between host and GPU, and between GPUs."""
