"""Checks of topology."""
