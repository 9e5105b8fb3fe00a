"""What ranks measure between nodes."""
