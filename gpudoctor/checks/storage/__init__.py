"""What training reads from and writes to: room, mounts, and how fast data arrives."""
