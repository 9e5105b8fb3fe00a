"""network.*: the adapters that carry training traffic between nodes."""
