"""What is expected of a kind of node: YAML, every number with its source."""
