"""The connection between the hub and a member: one JSON message per line, signed once the member is authenticated.

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

from gpudoctor.cluster.check.messages import PROTOCOL, Challenge, Hello

MAX_LINE_BYTES = 64 << 20  # a report with the facts of 16 GPUs is 1 MB
UNPROVED_LINE_BYTES = 64 << 10  # before the proof: more than a Hello, and little of the hub's memory
_MAC_BYTES = 64  # in hexadecimal digits
_T = TypeVar("_T")

End = Literal["hub", "member"]


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

    def sign(self, own_end: End, token: str, hub_nonce: str, member_nonce: str) -> None:
        """Sign and verify all further lines, as this end of the connection with these nonces."""
        other: End = "member" if own_end == "hub" else "hub"
        keys = (_mac(token, f"key of the {end}", hub_nonce, member_nonce) for end in (own_end, other))
        own, others = (key.encode() for key in keys)
        self._keys = own, others

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
    wanted = _proof(token, hub_nonce, hello.nonce, hello.hostname, hello.index)
    return hmac.compare_digest(hello.proof.encode(), wanted.encode())


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
