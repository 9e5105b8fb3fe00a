"""Checks of environment."""
