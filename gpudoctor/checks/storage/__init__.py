"""storage.*: what training reads from and writes to: free space, mounts, and read rates."""
