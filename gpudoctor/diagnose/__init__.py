"""What a failed or hanging job left behind -> what happened first, where, and why.

Readers turn text, dumps and stacks into events (`events`); `job` joins ranks, hosts, process ids and GPUs; `rules`
make hypotheses of them; `diagnosis` is the answer. Nothing here reads a node: that is `facts`.
"""
