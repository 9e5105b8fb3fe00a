"""The kernel log: its sources, where a message begins in a line, and what a message means."""
