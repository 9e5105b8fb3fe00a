"""strategy.*: whether each parallel strategy trains here as one rank alone does."""
