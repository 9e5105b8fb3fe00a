"""Checks of pcie."""
