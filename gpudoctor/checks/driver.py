"""Checks of driver."""
