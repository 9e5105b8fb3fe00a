"""The report of one run as data, and the renderers of its formats."""
