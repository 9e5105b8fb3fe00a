"""The connection between the hub, which leads a check of many nodes, and the one member on each of them.

One JSON line a message. A member proves that it knows the job's token before it is let in; what
comes over the line is data, and no order makes a member run anything but its own check and its
own ranks.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
from typing import TypeVar

import msgspec

from gpudoctor.facts.missing import Missing
from gpudoctor.facts.network_reach import Reach

PROTOCOL = "gpudoctor-cluster/1"
MAX_LINE_BYTES = 64 << 20  # a report with facts of 16 GPUs is 1 MB; more than this is no report
GUEST_LINE_BYTES = 64 << 10  # who has not proved anything yet gets no more of the hub's memory than a Hello takes
TOKEN_VARIABLE = "GPUDOCTOR_CLUSTER_TOKEN"
DEFAULT_SILENCE_S = 15.0
_T = TypeVar("_T")


class Challenge(msgspec.Struct, frozen=True):
    """The hub's first word: what a member has to prove its token over."""

    nonce: str
    protocol: str = PROTOCOL


class Hello(msgspec.Struct, frozen=True):
    """Who a member is. `index`: the node's number as its engine counts; `proof` is over the hub's nonce."""

    hostname: str
    proof: str
    index: int | None = None


class Welcome(msgspec.Struct, frozen=True):
    """The hub's word to a member that is let in."""

    silence_s: float = DEFAULT_SILENCE_S


class Ping(msgspec.Struct, frozen=True, tag=True):
    """What is your clock?"""


class Check(msgspec.Struct, frozen=True, tag=True):
    """Check your node, within `limit_s`."""

    limit_s: float


class Open(msgspec.Struct, frozen=True, tag=True):
    """Start your ranks; others reach your node by `address`."""

    backend: str
    address: str
    limit_s: float


class Meet(msgspec.Struct, frozen=True, tag=True):
    """Have your ranks, from number `first_rank` on, measure in a group (see probes/between_orders.py)."""

    key: str
    first_rank: int
    size: int
    host: str
    port: int
    size_bytes: int
    box_s: float
    limit_s: float


class End(msgspec.Struct, frozen=True, tag=True):
    """All is done: end your ranks, and yourself."""


Order = Ping | Check | Open | Meet | End


class Pong(msgspec.Struct, frozen=True, tag=True):
    """`clock_s` is the time of day, in seconds since 1970."""

    clock_s: float


class Checked(msgspec.Struct, frozen=True, tag=True):
    """The node's own report as `gpudoctor check --json` wrote it, or why there is none."""

    reach: Reach
    report: str | Missing


class Ready(msgspec.Struct, frozen=True, tag=True):
    """`ranks` ranks wait; the node's store listens on `port`. `interface`: what gloo was told to use, if anything."""

    ranks: int
    port: int
    interface: str | None = None


class Times(msgspec.Struct, frozen=True, tag=True):
    """Of each of the node's ranks: the times of its all_reduces, and whether its sums were right."""

    seconds: tuple[tuple[float, ...], ...]
    size_bytes: int
    right: tuple[bool, ...]


class CouldNot(msgspec.Struct, frozen=True, tag=True):
    """Why not. `absent`: what it takes is not there, which is no fault. `port` is the store of ranks started anew."""

    text: str
    absent: bool = False
    port: int | None = None


Answer = Pong | Checked | Ready | Times | CouldNot


class Asked(msgspec.Struct, frozen=True):
    """An order on its way; an answer carries the same number, so that none comes too late unnoticed."""

    number: int
    order: Order


class Answered(msgspec.Struct, frozen=True):
    number: int
    answer: Answer


class LineError(Exception):
    """The other end sent what is no message."""


class Line:
    """A socket as lines, without blocking: `take` gives what has come."""

    def __init__(self, connection: socket.socket, most_bytes: int = MAX_LINE_BYTES) -> None:
        self.socket = connection
        self.most_bytes = most_bytes
        self._buffer = bytearray()
        self._kept: list[bytes] = []

    def send(self, message: msgspec.Struct) -> None:
        """Send a whole message. Raise OSError where the other end is gone, or takes none for too long."""
        self.socket.sendall(msgspec.json.encode(message) + b"\n")

    def one(self) -> bytes:
        """Wait for one line, and leave those behind it for `take`. Raise OSError, and LineError at the end."""
        while True:
            lines = self.take()
            if lines is None:
                raise LineError("the connection ended")
            if lines:
                first, *self._kept = lines
                return first

    def take(self) -> list[bytes] | None:
        """The whole lines among what has come; None at the end. Raise OSError, and LineError for an endless line."""
        if self._kept:
            kept, self._kept = self._kept, []
            return kept
        data = self.socket.recv(1 << 18)
        if not data:
            return None
        self._buffer += data
        lines: list[bytes] = []
        if b"\n" in data:
            *lines, rest = bytes(self._buffer).split(b"\n")
            self._buffer = bytearray(rest)
        if len(self._buffer) > self.most_bytes:
            raise LineError("a message without end")
        return lines


def decoded(line: bytes, type_: type[_T]) -> _T:
    """The message in a line. Raise LineError for what is none, whatever it is: anybody can connect and write."""
    try:
        return msgspec.json.decode(line, type=type_)
    except RecursionError:
        raise LineError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineError(str(error)) from None


def notice_silence(connection: socket.socket, silence_s: float) -> None:
    """Have the kernel break the connection when the other host has not answered for so long."""
    options = {
        "TCP_KEEPIDLE": max(1, int(silence_s / 3)),
        "TCP_KEEPINTVL": max(1, int(silence_s / 6)),
        "TCP_KEEPCNT": 4,
        "TCP_USER_TIMEOUT": int(silence_s * 1000),
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in options.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def proof_of(token: str, nonce: str, hostname: str) -> str:
    """What only somebody with the token can say about the nonce."""
    return hmac.new(token.encode(), f"{PROTOCOL} {nonce} {hostname}".encode(), hashlib.sha256).hexdigest()


def new_secret() -> str:
    return os.urandom(16).hex()
