"""How fast data is read from a path: by readers as many as data loaders have, past the page cache."""
