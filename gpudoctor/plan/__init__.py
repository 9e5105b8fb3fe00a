"""Chooses the strategy that trains a model on these GPUs, estimates memory and time, and writes the launch command."""

MAX_BATCH = 2**24  # sequences of one step; here, since the command line imports no module of this package eagerly
