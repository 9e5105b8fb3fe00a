"""Finds out what `--node SOURCE` names, by content, and gives its Node."""
