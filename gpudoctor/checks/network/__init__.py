"""network.*: the adapters that carry training between nodes."""
