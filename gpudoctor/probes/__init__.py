"""Facts that take work: the only rooms that import torch, and only inside rank processes."""
