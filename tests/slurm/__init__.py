"""Tests of the Slurm hooks in Python: settings, drains, the kept verdict."""
