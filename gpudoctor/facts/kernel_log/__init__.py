"""The kernel log: where it comes from, where a message begins, and what a message says."""
