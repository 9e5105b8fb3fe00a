"""Collectives over all ranks: right and how fast."""
