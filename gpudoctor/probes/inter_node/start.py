"""Where a rank between nodes begins: it ends when the process that started it does."""

from __future__ import annotations

import json
import os
import signal

from gpudoctor.probes.runner.starter import tie_to_parent
from gpudoctor.process.own_program import own_python


def tied_rank(fd: int) -> list[str]:
    """The command line of a rank between nodes; it answers on the file descriptor, and dies with this process."""
    return own_python("gpudoctor.probes.inter_node.start", "begin", json.dumps([os.getpid(), fd]))


def begin(argument: str) -> None:
    """Be the rank that the argument says."""
    parent, fd = json.loads(argument)
    tie_to_parent(parent, signal.SIGKILL)
    from gpudoctor.probes.inter_node.rank import take_orders

    take_orders(fd)
