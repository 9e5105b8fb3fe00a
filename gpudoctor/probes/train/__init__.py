"""A short DDP training."""
