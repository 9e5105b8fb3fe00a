"""train.*: what a short DDP training showed."""
