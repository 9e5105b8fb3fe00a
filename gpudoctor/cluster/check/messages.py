"""The messages between the hub and the member on each node, and the connection that carries them: signed lines of JSON.

Messages are data: no order makes a member run anything but its own check and its own ranks.

Only those who know the job's token are trusted. Each end sends a nonce. The member proves with a MAC over both nonces
that it knows the token; from then on every line carries a MAC over its number and text, with one key per direction
derived from the token and the nonces. The hub's first signed line is the hub's proof. Changed, dropped, repeated or
reflected lines are detected. The content is not encrypted. The reasons are in docs/decisions/hub-channel.md.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import time
from typing import Literal, TypeVar

import msgspec

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.network import Reach
from gpudoctor.probes.inter_node.rank import RankGroup

PROTOCOL = "gpudoctor-cluster/2"
DEFAULT_SILENCE_S = 15.0
MAX_LINE_BYTES = 64 << 20  # a report with the facts of 16 GPUs is 1 MB
UNPROVED_LINE_BYTES = 64 << 10  # before the proof: more than a Hello, and little of the hub's memory
_MAC_BYTES = 64  # in hexadecimal digits
_T = TypeVar("_T")

Side = Literal["hub", "member"]


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


class LineError(Exception):
    """The other end sent something that is not a message."""


class TamperedError(LineError):
    """A line without the right MAC: it was changed, reordered, repeated or injected."""

    def __init__(self) -> None:
        super().__init__("the connection was tampered with")


class Line:
    """A socket that sends and receives lines.

    After `sign`, every sent line carries a MAC, and a received line without the right MAC is refused.
    """

    def __init__(self, connection: socket.socket, most_bytes: int = MAX_LINE_BYTES) -> None:
        self.socket = connection
        self.most_bytes = most_bytes
        self._buffer = bytearray()
        self._kept: list[bytes] = []
        self._keys: tuple[bytes, bytes] | None = None
        self._sent = self._taken = 0

    def sign(self, own_end: Side, token: str, hub_nonce: str, member_nonce: str) -> None:
        """Sign and verify all further lines, as this end of the connection with these nonces."""
        other: Side = "member" if own_end == "hub" else "hub"
        keys = (_mac(token, f"key of the {end}", hub_nonce, member_nonce) for end in (own_end, other))
        own_key, other_key = (key.encode() for key in keys)
        self._keys = own_key, other_key

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. Raise OSError if the connection is broken, or the other end does not read for too long."""
        text = msgspec.json.encode(message)
        if self._keys is not None:
            text = _line_mac(self._keys[0], self._sent, text) + text
            self._sent += 1
        self.socket.sendall(text + b"\n")

    def one(self, limit_s: float) -> bytes:
        """Wait for one complete line, and keep those after it for `take`.

        Raise OSError (TimeoutError after the limit), and LineError if the connection ends.
        """
        until_s = time.monotonic() + limit_s
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no message came in time")
            self.socket.settimeout(left_s)
            lines = self.take()
            if lines is None:
                raise LineError("the connection ended")
            if lines:
                first, *self._kept = lines
                return first

    def take(self) -> list[bytes] | None:
        """The complete lines received so far; None at the end of the connection. Waits only if nothing was received.

        Raise OSError, LineError for a line that is too long, TamperedError for one with a wrong MAC.
        """
        if self._kept:
            retained, self._kept = self._kept, []
            return retained
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
        return lines if self._keys is None else [self._verified(line, self._keys[1]) for line in lines]

    def _verified(self, line: bytes, key: bytes) -> bytes:
        mac, text = line[:_MAC_BYTES], line[_MAC_BYTES:]
        if not hmac.compare_digest(mac, _line_mac(key, self._taken, text)):
            raise TamperedError
        self._taken += 1
        return text


def decoded(line: bytes, type_: type[_T]) -> _T:
    """The message in a line. Raise LineError for any other content: anybody can connect and send anything."""
    try:
        return msgspec.json.decode(line, type=type_)
    except RecursionError:
        raise LineError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineError(str(error)) from None


def hello_of(token: str, challenge: Challenge, hostname: str, index: int | None) -> Hello:
    """The member's answer to the hub's challenge."""
    nonce = new_secret()
    return Hello(hostname, nonce, _proof(token, challenge.nonce, nonce, hostname, index), index)


def is_proved(token: str, hub_nonce: str, hello: Hello) -> bool:
    """Whether the sender of the Hello knows the token, compared in constant time."""
    expected = _proof(token, hub_nonce, hello.nonce, hello.hostname, hello.index)
    return hmac.compare_digest(hello.proof.encode(), expected.encode())


def notice_silence(connection: socket.socket, silence_s: float) -> None:
    """Have the kernel break the connection if the other host does not respond for `silence_s`."""
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


def new_secret() -> str:
    """A random secret of 128 bits, as 32 hexadecimal digits."""
    return os.urandom(16).hex()


def _proof(token: str, hub_nonce: str, member_nonce: str, hostname: str, index: int | None) -> str:
    return _mac(token, "proof", hub_nonce, member_nonce, hostname, index)


def _mac(token: str, *parts: str | int | None) -> str:
    # as JSON, so that no two lists of parts give the same text
    return hmac.new(token.encode(), msgspec.json.encode((PROTOCOL, *parts)), hashlib.sha256).hexdigest()


def _line_mac(key: bytes, number: int, text: bytes) -> bytes:
    return hmac.new(key, number.to_bytes(8, "big") + text, hashlib.sha256).hexdigest().encode()
