"""Readers for the output of commands about the host."""
