"""driver.*: is the NVIDIA driver there, of one piece, and does it answer."""
