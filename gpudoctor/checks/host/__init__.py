"""host.*: can the machine around the GPUs feed them?"""
