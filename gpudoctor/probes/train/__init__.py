"""The short DDP training."""
