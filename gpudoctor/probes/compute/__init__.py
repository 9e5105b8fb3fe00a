"""Arithmetic and memory of one device."""
