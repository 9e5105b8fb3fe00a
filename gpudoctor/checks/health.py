"""Checks of health."""
