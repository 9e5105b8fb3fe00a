"""Whatever connects to the hub of a cluster check, and whatever it sends, a member of the job is let in after it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.messages import (
    Answered,
    Asked,
    Challenge,
    CheckOrder,
    JoinGroup,
    Line,
    LineError,
    Pong,
    Times,
    decoded,
    hello_of,
)
from tests.cluster.puppets import TOKEN, Puppet
from tests.fuzz.mutate import Step, mutated, steps
from tests.fuzz.profile import fuzzed

SAID = (
    msgspec.json.encode(hello_of(TOKEN, Challenge("n"), "node1", 0)) + b"\n",
    msgspec.json.encode(hello_of("another token", Challenge("n"), "node1", None)) + b"\n" + b"0" * 64 + b"{}\n",
    b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n",
)
MESSAGES = (
    Asked(1, CheckOrder(20.0)),
    Asked(2, JoinGroup("k", 2, "10.0.0.1", 29500, 1 << 20, 0.3, 20.0, first_rank=0)),
    Answered(1, Pong(1.5)),
    Answered(2, Times(((0.5, 0.25),), 1 << 20, (True,))),
)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    """One that gathers until the test is over; then a member of its job comes, and has to be let in."""
    hub = Hub(TOKEN)
    over = threading.Event()
    gathering = threading.Thread(target=hub.gather, args=(None, 86400.0, over.is_set), daemon=True)
    gathering.start()
    yield hub
    own = Puppet("ours")
    own.port = hub.port
    own.start()
    while not hub.members and gathering.is_alive():
        own.join(0.01)
    over.set()
    gathering.join(30)
    names = [member.hostname for member in hub.members]
    hub.close()
    assert names == ["ours"]
    assert own.ended.wait(30)


@fuzzed("hub")
@given(st.sampled_from(SAID), steps)
def test_a_stranger_is_hung_up_on(hub: Hub, said: bytes, how: list[Step]) -> None:
    with socket.create_connection(("127.0.0.1", hub.port), 30) as stranger:
        line = Line(stranger)
        decoded(line.one(30.0), Challenge)
        with contextlib.suppress(OSError):
            stranger.sendall(mutated(said, how))
            stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            assert stranger.recv(1) == b""


@fuzzed("hub")
@given(st.sampled_from(MESSAGES), steps)
def test_a_signed_line_that_was_changed_is_refused(message: msgspec.Struct, how: list[Step]) -> None:
    left, right = socket.socketpair()
    with left, right:
        hub, member = Line(left), Line(right)
        hub.sign("hub", TOKEN, "h", "m")
        member.sign("member", TOKEN, "h", "m")
        member.send(message)
        said = left.recv(1 << 16)
        changed = mutated(said, how)
        right.sendall(changed)
        right.shutdown(socket.SHUT_WR)
        with pytest.raises(LineError):
            _heard(hub, said[64:-1])


def _heard(line: Line, wanted: bytes) -> None:
    """Read lines until one is refused, at the latest at the end; only what was sent may come before that."""
    while True:
        assert line.one(30.0) == wanted
