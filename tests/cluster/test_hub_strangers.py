"""The hub listens on every address of a node: whatever connects, and however it disconnects, costs the job nothing."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
from collections.abc import Callable

import pytest

from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.member import Member
from gpudoctor.cluster.check.messages import UNPROVED_LINE_BYTES, Challenge, Line, LineError, Welcome, decoded, hello_of
from gpudoctor.errors import UserError
from tests.cluster.puppets import TOKEN, Puppet, bad, job, report_of


def hello(line: Line, hostname: str) -> None:
    challenge = decoded(line.one(30.0), Challenge)
    said = hello_of(TOKEN, challenge, hostname, None)
    line.send(said)
    line.sign("member", TOKEN, challenge.nonce, said.nonce)


def gathered(*comers: Callable[[socket.socket], None]) -> list[str]:
    """Connect these strangers one after the other, then a member of the job."""
    hub = Hub(TOKEN, silence_s=10.0)
    own = Puppet("ours")
    own.port = hub.port

    def come() -> None:
        for comer in comers:
            with socket.create_connection(("127.0.0.1", hub.port), 30) as connection:
                comer(connection)
        own.start()

    threading.Thread(target=come, daemon=True).start()
    hub.gather(None, 30.0, lambda: any(member.hostname == "ours" for member in hub.members))
    names = [member.hostname for member in hub.members]
    hub.close()
    assert own.ended.wait(30)
    return names


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
            line = Line(connection)
            hello(line, self.hostname)
            decoded(line.one(30.0), Welcome)
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


def test_a_member_that_meets_another_service_says_that_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b'{"nonce": "\xff"}\n')

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(UserError, match="nobody to meet at"):
            Member([]).serve([("127.0.0.1", listener.getsockname()[1])], TOKEN, 0, 0.0)
