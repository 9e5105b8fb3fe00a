"""Simulated nodes, the faults that can be injected into them, and their simulated training job."""
