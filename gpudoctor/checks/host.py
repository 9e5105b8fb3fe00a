"""Checks of host."""
