"""Collectives over all ranks: correctness and bandwidth."""
