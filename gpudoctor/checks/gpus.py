"""Checks of gpus."""
