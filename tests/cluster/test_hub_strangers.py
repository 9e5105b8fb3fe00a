"""The hub listens on every address of a node: whatever connects, and however it disconnects, costs the job nothing."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import cast

import pytest

from gpudoctor.cluster.check import hub as hub_module
from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.messages import UNPROVED_LINE_BYTES, Challenge, LineError, decoded
from tests.cluster.puppets import TOKEN, Puppet, bad, job, report_of


def gathered(*comers: Callable[[socket.socket], None], hub: Hub | None = None) -> list[str]:
    """Connect these strangers one after the other, then a member of the job; who was let in."""
    hub = hub or Hub(TOKEN, silence_s=10.0)
    own = Puppet("ours")
    own.port = hub.port
    with ExitStack() as crowd:

        def come() -> None:
            for comer in comers:
                comer(crowd.enter_context(socket.create_connection(("127.0.0.1", own.port), 30)))
            own.start()

        threading.Thread(target=come, daemon=True).start()
        hub.gather(None, 30.0, lambda: any(member.hostname == "ours" for member in hub.members))
        names = [member.hostname for member in hub.members]
        hub.close()
        assert own.ended.wait(30)
    return names


def silent(connection: socket.socket) -> None:
    """Says nothing, and does not wait for an end."""


def says(words: bytes) -> Callable[[socket.socket], None]:
    """Sends this instead of a Hello; returns once the hub has hung up."""

    def say(connection: socket.socket) -> None:
        connection.recv(4096)
        try:
            connection.sendall(words)
            while connection.recv(4096):
                pass
        except OSError:
            pass  # hung up while it was still talking

    return say


@pytest.mark.parametrize(
    "words",
    [
        json.dumps({"hostname": "a", "proof": "é"}, ensure_ascii=False).encode() + b"\n",
        b'{"hostname": "\xff", "proof": "x"}\n',
        b'{"x": ' + b"[" * 60_000 + b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\n",
        b"x" * (UNPROVED_LINE_BYTES + 1),
    ],
    ids=["proof not ASCII", "not UTF-8", "nested deeply", "HTTP", "empty", "a line without end"],
)
def test_a_stranger_is_sent_away_whatever_it_says_and_the_members_are_let_in(words: bytes) -> None:
    assert gathered(says(words)) == ["ours"]


def test_who_connects_and_says_nothing_is_hung_up_on() -> None:
    assert gathered(says(b""), hub=Hub(TOKEN, proof_s=0.1)) == ["ours"]


def test_a_crowd_that_proves_nothing_does_not_keep_a_member_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_UNPROVED_MAX", 4)
    assert gathered(*[silent] * 20) == ["ours"]


def test_a_crowd_that_holds_all_that_may_be_open_does_not_keep_a_member_out() -> None:
    """`ulimit -n 1024`, hard: the strangers' connections are all that this process may have."""

    class Full:
        def __init__(self, listener: socket.socket) -> None:
            self.fileno, self.close, self._listener = listener.fileno, listener.close, listener

        def accept(self) -> object:
            if len(hub._unproved) >= 4:
                raise OSError(errno.EMFILE, "Too many open files")
            return self._listener.accept()

    hub = Hub(TOKEN, proof_s=600.0)
    hub._listener = cast(socket.socket, Full(hub._listener))
    assert gathered(*[silent] * 8, hub=hub) == ["ours"]


def test_without_free_file_descriptors_the_hub_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def accept(_: socket.socket) -> None:
        tried.append(1)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    hub = Hub(TOKEN, silence_s=10.0)
    with socket.create_connection(("127.0.0.1", hub.port), 30):
        monkeypatch.setattr(socket.socket, "accept", accept)
        hub.gather(None, 0.5, lambda: False)
    hub.close()
    assert 0 < len(tried) < 10


def test_a_member_that_dies_before_all_are_there_is_unknown_and_the_others_are_checked() -> None:
    class Dead(Puppet):
        def _serve(self) -> None:
            connection = socket.create_connection(("127.0.0.1", self.port), 30)
            self.join_hub(connection)
            # as a host that is reset: no goodbye, and the kernel knows nothing of the connection any more
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    report = report_of([*job("a", "b"), Dead("c", 2)])
    assert {name for _, name, _ in bad(report)} == {"c"}
    assert [node.verdict for node in report.nodes] == ["pass", "pass", "unknown"]


def test_names_with_digits_of_other_scripts_can_be_put_in_order() -> None:
    report = report_of([Puppet("node1"), Puppet("٣"), Puppet("2node")])
    assert [node.name for node in report.nodes] == ["2node", "node1", "٣"]


@pytest.mark.parametrize("words", [b'{"nonce": "\xff"}', b'{"x": ' + b"[" * 100_000, b'{"nonce": 1}', b""])
def test_what_is_no_message_is_told_from_one_in_one_way(words: bytes) -> None:
    with pytest.raises(LineError):
        decoded(words, Challenge)
