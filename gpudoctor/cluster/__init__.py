"""Checks of many nodes. The user's own engine (Slurm, MPI, Ray, ...) places one gpudoctor process on each."""
