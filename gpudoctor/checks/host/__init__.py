"""host.*: whether the machine around the GPUs can feed them."""
