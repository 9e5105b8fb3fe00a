"""The messages between the hub and the member on each node.

They are data: no order makes a member run anything but its own check and its own ranks. Transport and authentication
are in channel.py.
"""

from __future__ import annotations

import msgspec

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.network import Reach
from gpudoctor.probes.inter_node.rank import RankGroup

PROTOCOL = "gpudoctor-cluster/2"
DEFAULT_SILENCE_S = 15.0


class Challenge(msgspec.Struct, frozen=True):
    """The hub's first message: the nonce for the member's proof."""

    nonce: str
    protocol: str = PROTOCOL


class Hello(msgspec.Struct, frozen=True):
    """A member's identity. `index` is the engine's number of the node; `proof` covers both nonces and all fields."""

    hostname: str
    nonce: str
    proof: str
    index: int | None = None


class Welcome(msgspec.Struct, frozen=True):
    """The hub's answer to an accepted member: the first signed message, and so the hub's own proof."""

    silence_s: float = DEFAULT_SILENCE_S


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Send the time of your clock."""


class CheckOrder(msgspec.Struct, frozen=True, tag=True):
    """Check your node, within `limit_s`."""

    limit_s: float


class Open(msgspec.Struct, frozen=True, tag=True):
    """Start your ranks; other nodes reach yours at `address`."""

    backend: str
    address: str
    limit_s: float


class JoinGroup(RankGroup, frozen=True, tag=True, kw_only=True):
    """Have your ranks, numbered from `first_rank`, measure in this group."""

    first_rank: int


class End(msgspec.Struct, frozen=True, tag=True):
    """End your ranks and yourself."""


Order = Ping | CheckOrder | Open | JoinGroup | End


class Pong(msgspec.Struct, frozen=True, tag=True):
    """`clock_s` is the time of day, in seconds since 1970."""

    clock_s: float


class Checked(msgspec.Struct, frozen=True, tag=True):
    """The node's own report as `gpudoctor check --format json` printed it, or why there is none."""

    reach: Reach
    report: str | Missing


class Ready(msgspec.Struct, frozen=True, tag=True):
    """`ranks` ranks are ready; the node's store listens on `port`. `interface`: set as GLOO_SOCKET_IFNAME, if any."""

    ranks: int
    port: int
    interface: str | None = None


class Times(msgspec.Struct, frozen=True, tag=True):
    """For each of the node's ranks: the times of its all_reduces in seconds, and whether its sums were right."""

    seconds: tuple[tuple[float, ...], ...]
    size_bytes: int
    right: tuple[bool, ...]


class MemberFailure(msgspec.Struct, frozen=True, tag=True):
    """Why an order failed. `absent`: something needed does not exist here, which is no fault.

    `port`: where the store of the restarted ranks listens.
    """

    text: str
    absent: bool = False
    port: int | None = None


class Tampered(msgspec.Struct, frozen=True, tag=True):
    """The member received a line with a wrong MAC, and ends."""


Answer = Pong | Checked | Ready | Times | MemberFailure | Tampered


class Asked(msgspec.Struct, frozen=True):
    """An order with its number; the answer carries the same number, so that a late answer is recognised."""

    number: int
    order: Order


class Answered(msgspec.Struct, frozen=True):
    number: int
    answer: Answer
