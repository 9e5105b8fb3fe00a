"""Checks of network."""
