"""Readers of what other commands print about the host."""
