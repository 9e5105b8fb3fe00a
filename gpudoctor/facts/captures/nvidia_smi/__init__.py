"""Readers for the output of nvidia-smi."""
