"""A rank for measurements between nodes, before it imports torch: orders come on stdin, answers go to a pipe."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import msgspec

from gpudoctor.process.ending import leave
from gpudoctor.process.pipes import write_all


class RankGroup(msgspec.Struct, frozen=True):
    """A process group of `size` ranks that measures all_reduce.

    `key`: unique prefix in the store at `host` and `port`. `box_s`: how long to measure; `limit_s`: timeout of every
    operation of the group.
    """

    key: str
    size: int
    host: str
    port: int
    size_bytes: int
    box_s: float
    limit_s: float


class Rendezvous(RankGroup, frozen=True, kw_only=True):
    """Join the group as rank `rank`, and measure all_reduce in it."""

    rank: int


class Opened(msgspec.Struct, frozen=True, tag=True):
    """torch is usable, and a store for rendezvous listens on `port` of this node."""

    port: int
    torch: str


class AllReduceTimes(msgspec.Struct, frozen=True, tag=True):
    """One rank's time of each all_reduce of `size_bytes`, in seconds; `right`: the sums were exactly correct."""

    seconds: tuple[float, ...]
    size_bytes: int
    right: bool


class InterNodeFailure(msgspec.Struct, frozen=True, tag=True):
    """It failed, explained in one line. `absent`: torch is missing or unusable, which is no fault of the node."""

    text: str
    absent: bool = False


Answer = Opened | AllReduceTimes | InterNodeFailure


def run_inter_node_rank(answers: str) -> NoReturn:
    """Open the store, then serve one rendezvous per line of stdin; `answers`: descriptor for the answers."""
    fd = int(answers)
    os.dup2(2, 1)  # output of torch or NCCL must not get into reports
    try:
        from gpudoctor.probes.inter_node.measure import InterNodeRank
    except Exception as error:  # noqa: BLE001 - a broken installation of torch may raise anything
        name = getattr(error, "name", None)
        text = "PyTorch is not installed" if name == "torch" else f"PyTorch does not load: {error}"
        _send(fd, InterNodeFailure(text.splitlines()[0], absent=True))
        leave()
    measuring = InterNodeRank(os.environ["GPUDOCTOR_INTER_NODE_BACKEND"], os.environ["GPUDOCTOR_INTER_NODE_ADDRESS"])
    opened = measuring.open()
    _send(fd, opened)
    if not isinstance(opened, InterNodeFailure):
        for line in sys.stdin.buffer:
            _send(fd, measuring.measure(msgspec.json.decode(line, type=Rendezvous)))
    leave()


def _send(fd: int, answer: Answer) -> None:
    write_all(fd, msgspec.json.encode(answer) + b"\n")
