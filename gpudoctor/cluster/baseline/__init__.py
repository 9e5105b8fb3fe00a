"""`gpudoctor baseline`: compares a node with its own earlier healthy runs."""
