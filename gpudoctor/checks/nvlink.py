"""Checks of nvlink."""
