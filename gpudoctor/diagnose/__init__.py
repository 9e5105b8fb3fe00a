"""Finds what happened first in a failed or hanging job, where and why, from what the job left behind.

Readers turn text, dumps and stacks into events (`events`); `job` joins ranks, hosts, process ids and GPUs; `rules`
turn those into hypotheses; `diagnosis` is the answer. Nothing here reads a node: `facts` does that.
"""
