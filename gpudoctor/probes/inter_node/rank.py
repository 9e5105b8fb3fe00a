"""A rank that measures between nodes, before it has torch: orders come on stdin, answers go to a pipe."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import msgspec

from gpudoctor.probes.inter_node.messages import Answer, InterNodeFailure, Rendezvous
from gpudoctor.process.ending import leave
from gpudoctor.process.pipes import write_all


def run_inter_node_rank(answers: str) -> NoReturn:
    """Open the store, then serve one rendezvous a line of stdin until it ends; each answer goes to the descriptor."""
    fd = int(answers)
    own_stdout_to_stderr()
    try:
        from gpudoctor.probes.inter_node.measure import InterNodeRank
    except (ImportError, OSError) as error:
        name = getattr(error, "name", None)
        text = "PyTorch is not installed" if name == "torch" else f"PyTorch does not load: {error}"
        _send(fd, InterNodeFailure(text.splitlines()[0], absent=True))
        leave()
    measuring = InterNodeRank(os.environ["GPUDOCTOR_BETWEEN_BACKEND"], os.environ["GPUDOCTOR_BETWEEN_ADDRESS"])
    opened = measuring.open()
    _send(fd, opened)
    if not isinstance(opened, InterNodeFailure):
        for line in sys.stdin.buffer:
            _send(fd, measuring.measure(msgspec.json.decode(line, type=Rendezvous)))
    leave()


def own_stdout_to_stderr() -> None:
    """What torch or NCCL prints must not come among reports."""
    os.dup2(2, 1)


def _send(fd: int, answer: Answer) -> None:
    write_all(fd, msgspec.json.encode(answer) + b"\n")
