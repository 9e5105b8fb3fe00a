"""Checks of collective."""
