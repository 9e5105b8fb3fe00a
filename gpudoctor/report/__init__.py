"""What the reader gets: everything about one run as data, and the renderers that make text of it."""
