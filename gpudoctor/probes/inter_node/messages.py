"""The messages between the process of a node and its ranks while nodes are measured against each other."""

from __future__ import annotations

import msgspec


class Rendezvous(msgspec.Struct, frozen=True):
    """Join a process group of `size` ranks as number `rank`, and all_reduce in it.

    `key` is the group's own, `host` and `port` where its store is. `box_s` is how long to
    measure, `limit_s` how long anything in it may take.
    """

    key: str
    rank: int
    size: int
    host: str
    port: int
    size_bytes: int
    box_s: float
    limit_s: float


class Opened(msgspec.Struct, frozen=True, tag=True):
    """torch is there, and a store for rendezvous listens on `port` of this node."""

    port: int
    torch: str


class AllReduceTimes(msgspec.Struct, frozen=True, tag=True):
    """One rank's time of each all_reduce, in seconds; `size_bytes` of each; `right`: the sums were, exactly."""

    seconds: tuple[float, ...]
    size_bytes: int
    right: bool


class InterNodeFailure(msgspec.Struct, frozen=True, tag=True):
    """It could not be done; one line. `absent`: torch is not there or unusable, which is no fault of the node."""

    text: str
    absent: bool = False


Answer = Opened | AllReduceTimes | InterNodeFailure
