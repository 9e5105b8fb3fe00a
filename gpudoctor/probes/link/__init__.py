"""Copies between host and GPU, and between GPUs."""
