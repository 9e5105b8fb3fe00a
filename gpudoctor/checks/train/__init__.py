"""train.*: results of a short DDP training."""
