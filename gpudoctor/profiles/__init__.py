"""Expected values for kinds of nodes and GPU models: YAML, every number with its source."""
