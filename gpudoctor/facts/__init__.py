"""What is true of a node. Readers read; they never judge."""
