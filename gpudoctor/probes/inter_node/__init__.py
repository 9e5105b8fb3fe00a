"""Measurements between nodes, made by ranks."""
