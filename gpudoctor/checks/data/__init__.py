"""data.*: do samples come as fast as the GPUs consume them?"""
