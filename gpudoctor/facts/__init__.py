"""Facts about a node, and their readers. Readers never judge."""
