"""What other programs report about the node in a text that was pasted."""
