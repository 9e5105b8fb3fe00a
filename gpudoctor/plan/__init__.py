"""Which strategy will train a model on these GPUs, what it costs, and how to launch it."""

MAX_BATCH = 2**24  # sequences of one step; here, since the command line imports nothing else of this room
