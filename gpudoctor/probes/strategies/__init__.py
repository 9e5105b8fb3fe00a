"""Each parallel strategy: ten steps of one small transformer."""
