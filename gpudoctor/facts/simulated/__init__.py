"""Simulated nodes, the faults that can be put into them, and the job that they play."""
