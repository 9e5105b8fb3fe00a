"""What the hub, which leads a check of many nodes, and the one member on each of them say to each other.

What comes over the line is data: no order makes a member run anything but its own check and its own
ranks. How the messages travel, and who is believed, is in channel.py.
"""

from __future__ import annotations

import msgspec

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.network_reach import Reach
from gpudoctor.probes.inter_node.rank import RankGroup

PROTOCOL = "gpudoctor-cluster/2"
DEFAULT_SILENCE_S = 15.0


class Challenge(msgspec.Struct, frozen=True):
    """The hub's first word: what a member has to prove its token over."""

    nonce: str
    protocol: str = PROTOCOL


class Hello(msgspec.Struct, frozen=True):
    """Who a member is. `index`: the node's number as its engine counts; `proof` is over both nonces and all of this."""

    hostname: str
    nonce: str
    proof: str
    index: int | None = None


class Welcome(msgspec.Struct, frozen=True):
    """The hub's word to a member that is let in; the first that is signed, and so the hub's own proof."""

    silence_s: float = DEFAULT_SILENCE_S


class Ping(msgspec.Struct, frozen=True, tag=True):
    """What is your clock?"""


class CheckOrder(msgspec.Struct, frozen=True, tag=True):
    """Check your node, within `limit_s`."""

    limit_s: float


class Open(msgspec.Struct, frozen=True, tag=True):
    """Start your ranks; others reach your node by `address`."""

    backend: str
    address: str
    limit_s: float


class JoinGroup(RankGroup, frozen=True, tag=True, kw_only=True):
    """Have your ranks, from number `first_rank` on, measure in this group."""

    first_rank: int


class End(msgspec.Struct, frozen=True, tag=True):
    """All is done: end your ranks, and yourself."""


Order = Ping | CheckOrder | Open | JoinGroup | End


class Pong(msgspec.Struct, frozen=True, tag=True):
    """`clock_s` is the time of day, in seconds since 1970."""

    clock_s: float


class Checked(msgspec.Struct, frozen=True, tag=True):
    """The node's own report as `gpudoctor check --json` wrote it, or why there is none."""

    reach: Reach
    report: str | Missing


class Ready(msgspec.Struct, frozen=True, tag=True):
    """`ranks` ranks wait; the node's store listens on `port`. `interface`: what gloo is to use, if anything."""

    ranks: int
    port: int
    interface: str | None = None


class Times(msgspec.Struct, frozen=True, tag=True):
    """Of each of the node's ranks: the times of its all_reduces, and whether its sums were right."""

    seconds: tuple[tuple[float, ...], ...]
    size_bytes: int
    right: tuple[bool, ...]


class MemberFailure(msgspec.Struct, frozen=True, tag=True):
    """Why not. `absent`: what it takes is not there, which is no fault. `port` is the store of ranks started anew."""

    text: str
    absent: bool = False
    port: int | None = None


class Tampered(msgspec.Struct, frozen=True, tag=True):
    """An order came that the hub did not send so: the member ends."""


Answer = Pong | Checked | Ready | Times | MemberFailure | Tampered


class Asked(msgspec.Struct, frozen=True):
    """An order on its way; an answer carries the same number, so that none comes too late unnoticed."""

    number: int
    order: Order


class Answered(msgspec.Struct, frozen=True):
    number: int
    answer: Answer
