"""A man in the middle between the nodes of a job: changed, repeated and dropped lines are noticed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.checks.core.finding import Status
from gpudoctor.cluster.check import member as member_module
from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.member import Member
from gpudoctor.cluster.check.messages import (
    Answered,
    Asked,
    Challenge,
    CheckOrder,
    Hello,
    Line,
    LineError,
    MemberFailure,
    Ping,
    Pong,
    TamperedError,
    Welcome,
    decoded,
    hello_of,
    is_proved,
)
from gpudoctor.cluster.check.placement import JobPlacement, token_for
from gpudoctor.errors import UserError
from tests.cluster.puppets import TOKEN, Puppet, RealMember, bad, job, report_of, text_of
from tests.subprocesses import completed

Change = Callable[[bytes], bytes | None]


class Relay(threading.Thread):
    """A man in the middle between a member and the hub: sends on what each direction's function makes of a line."""

    def __init__(self, hub_port: int, from_member: Change, from_hub: Change) -> None:
        super().__init__(daemon=True)
        self._hub_port = hub_port
        self._from_member, self._from_hub = from_member, from_hub
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def run(self) -> None:
        with self._listener:
            member, _ = self._listener.accept()
        hub = socket.create_connection(("127.0.0.1", self._hub_port), 30)
        back = threading.Thread(target=self._pass_on, args=(hub, member, self._from_hub), daemon=True)
        back.start()
        self._pass_on(member, hub, self._from_member)
        back.join(30)
        member.close()
        hub.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, change: Change) -> None:
        try:
            with source.makefile("rb") as lines:
                for line in lines:
                    changed = change(line.removesuffix(b"\n"))
                    if changed is not None:
                        target.sendall(changed + b"\n")
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one of them has hung up


class Relayed(Puppet):
    """A member whose connection to the hub goes through a man in the middle."""

    from_member: Change = staticmethod(lambda line: line)
    from_hub: Change = staticmethod(lambda line: line)

    def run(self) -> None:
        relay = Relay(self.port, self.from_member, self.from_hub)
        relay.start()
        self.port = relay.port
        super().run()


def swapped(old: bytes, new: bytes) -> Change:
    return lambda line: line.replace(old, new)


def twice_from(word: bytes) -> Change:
    return lambda line: line + b"\n" + line if word in line else line


def test_who_only_passes_on_what_is_said_changes_nothing() -> None:
    report = report_of([*job("a", "b"), Relayed("c", 2)])
    assert bad(report) == set()
    assert report.verdict == "pass"


@pytest.mark.parametrize(
    "change",
    [
        swapped(b'\\"verdict\\":\\"pass\\"', b'\\"verdict\\":\\"fail\\"'),
        swapped(b'"clock_s":1', b'"clock_s":2'),
        twice_from(b'"Pong"'),
    ],
    ids=["a verdict is swapped", "a clock is put forward", "an answer comes twice"],
)
def test_a_result_that_is_changed_on_the_wire_is_no_result(change: Change) -> None:
    node = Relayed("c", 2)
    node.from_member = change
    report = report_of([*job("a", "b"), node])
    assert {(check, name, status) for check, name, status in bad(report) if check == "cluster.nodes"} == {
        ("cluster.nodes", "c", "unknown")
    }
    assert "the connection was tampered with" in text_of(report, "cluster.nodes", "c", Status.UNKNOWN)
    assert [node.verdict for node in report.nodes] == ["pass", "pass", "unknown"]
    assert (report.verdict, report.exit_code) == ("unknown", 3)


def test_an_order_that_is_changed_on_the_wire_is_not_followed_and_the_hub_is_told() -> None:
    """The node's own process, not a made-up one: it would check with a limit chosen by an attacker."""

    hub = Hub(TOKEN)
    relay = Relay(hub.port, lambda line: line, swapped(b'"limit_s":20.0', b'"limit_s":99.0'))
    relay.start()
    member = RealMember("c", relay.port)
    member.start()
    hub.gather(1, 30.0, lambda: False)
    answer = hub.ask({0: CheckOrder(20.0)}, 30.0)[0]
    hub.close()
    member.join(30)
    assert answer == MemberFailure("the connection was tampered with")
    assert member.said == "the connection was tampered with"


def met_by(pose: Callable[[socket.socket], object]) -> None:
    """A node of the job meets nobody but a false hub, which does this with its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                pose(connection)

        posing = threading.Thread(target=accept, daemon=True)
        posing.start()
        with pytest.raises(UserError, match="nobody to meet at"):
            Member([]).serve([("127.0.0.1", listener.getsockname()[1])], TOKEN, 0, 0.0)
        posing.join(30)


def test_a_member_that_meets_another_service_says_that_nobody_is_there() -> None:
    met_by(lambda connection: connection.sendall(b'{"nonce": "\xff"}\n'))


def test_a_member_does_not_serve_a_hub_that_does_not_know_the_token() -> None:
    orders: list[bytes] = []

    def pose(connection: socket.socket) -> None:
        line = Line(connection)
        line.send(Challenge("00" * 16))
        hello = decoded(line.one(30.0), Hello)
        line.sign("hub", "some other token", "00" * 16, hello.nonce)
        line.send(Welcome())
        line.send(Asked(1, Ping()))
        orders.extend(line.take() or [])

    met_by(pose)
    assert orders == [], "it has said nothing but its Hello"


def test_a_false_hub_that_speaks_slowly_does_not_hold_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of the first node occupies the port derived from the job's name, and sends a blank now and then,
    endlessly.
    """
    monkeypatch.setattr(member_module, "_TRY_S", 0.2)
    hung_up = threading.Event()

    def pose(connection: socket.socket) -> None:
        connection.settimeout(0.05)
        for _ in range(200):
            try:
                if not connection.recv(1):
                    hung_up.set()
                    return
            except TimeoutError:
                connection.sendall(b" ")
            except OSError:
                hung_up.set()
                return

    met_by(pose)
    assert hung_up.is_set()


def test_a_false_hub_gets_no_more_memory_than_a_stranger() -> None:
    taken = threading.Event()

    def pose(connection: socket.socket) -> None:
        with suppress(OSError):  # hung up on
            for _ in range(64):
                connection.sendall(b" " * (1 << 20))
            taken.set()

    met_by(pose)
    assert not taken.is_set()


@pytest.fixture
def pair() -> Iterator[tuple[Line, Line]]:
    left, right = socket.socketpair()
    with left, right:
        yield Line(left), Line(right)


def signed(pair: tuple[Line, Line]) -> tuple[Line, Line]:
    pair[0].sign("hub", TOKEN, "h", "m")
    pair[1].sign("member", TOKEN, "h", "m")
    return pair


def test_what_one_end_said_cannot_be_sent_back_to_it(pair: tuple[Line, Line]) -> None:
    hub, member = signed(pair)
    member.send(Answered(0, Pong(1.0)))
    said = hub.socket.recv(4096)
    hub.socket.sendall(said)
    with pytest.raises(TamperedError):
        member.one(30.0)


def test_after_a_line_that_was_left_out_none_is_believed(pair: tuple[Line, Line]) -> None:
    hub, member = signed(pair)
    member.send(Answered(1, Pong(1.0)))
    hub.socket.recv(4096)
    member.send(Answered(2, Pong(2.0)))
    with pytest.raises(TamperedError):
        hub.one(30.0)


@given(st.integers(0, 200), st.integers(0, 255))
def test_no_byte_of_a_signed_line_can_be_changed_unnoticed(place: int, byte: int) -> None:
    left, right = socket.socketpair()
    with left, right:
        hub, member = signed((Line(left), Line(right)))
        member.send(Answered(7, Pong(12345.678)))
        said = bytearray(left.recv(4096))
        line = bytearray(said[:-1])
        line[place % len(line)] = byte
        right.sendall(line + b"\n")
        if bytes(line) == bytes(said[:-1]):
            assert decoded(hub.one(30.0), Answered) == Answered(7, Pong(12345.678))
        else:
            with pytest.raises(LineError):
                hub.one(30.0)


@given(st.text(max_size=40), st.text(max_size=40), st.one_of(st.none(), st.integers(0, 10**6)))
def test_a_proof_holds_for_one_hostname_one_number_and_one_challenge(name: str, other: str, index: int | None) -> None:
    hello = hello_of(TOKEN, Challenge("n"), name, index)
    assert is_proved(TOKEN, "n", hello)
    assert not is_proved(TOKEN, "m", hello)
    assert not is_proved("another token", "n", hello)
    forged = Hello(other, hello.nonce, hello.proof, hello.index)
    assert is_proved(TOKEN, "n", forged) == (name == other)
    assert not is_proved(TOKEN, "n", Hello(name, hello.nonce, hello.proof, 0 if index is None else None))


def test_on_one_node_the_token_is_nobodys_guess() -> None:
    """Every user of the node can read the job's number, and could connect before the node's own process."""
    place = JobPlacement("slurm", 0, 1, 0, "node1", "slurm/cluster/4711/0")
    tokens = {token_for(place, None, insecure=insecure) for insecure in (False, False, True)}
    assert len(tokens) == 3
    assert token_for(place, TOKEN, insecure=False) == TOKEN


def rank_of(place: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    engines = ("SLURM", "OMPI", "PMIX", "RAY", "TORCHELASTIC", "MASTER", "GPUDOCTOR_CLUSTER")
    env = {name: value for name, value in os.environ.items() if not name.startswith(engines)}
    command = [sys.executable, "-m", "gpudoctor", "cluster", "rank", "--source", "hgx-h100-8", "--level", "quick"]
    return completed([*command, "--backend", "gloo", "--deadline", "10", *options], env=env | place)


OVER_A_NETWORK = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29501"}


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ({"RANK": "0"}, ()),
        ({"RANK": "1"}, ()),
        ({"RANK": "1", "MASTER_ADDR": "127.0.0.1"}, ("--meet", "192.0.2.1")),  # whatever the engine says
    ],
)
def test_without_a_token_a_job_over_a_network_is_refused(place: dict[str, str], options: tuple[str, ...]) -> None:
    done = rank_of(OVER_A_NETWORK | place, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in ("GPUDOCTOR_CLUSTER_TOKEN", "--token-file", "--insecure", "192.0.2.1"))


@pytest.mark.parametrize("host", ["node..lab", "x" * 70])
def test_what_is_no_host_name_is_told_in_one_line(host: str) -> None:
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": host, "GPUDOCTOR_CLUSTER_TOKEN": "0123456789abcdef"}
    done = rank_of(place, "--deadline", "1")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert f"nobody to meet at {host}:" in done.stderr


def test_on_one_node_no_token_is_needed_and_the_hub_listens_on_loopback_only() -> None:
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29502"}
    done = rank_of(place, "--json")
    assert done.returncode == 0, done.stderr
    assert "INSECURE" not in done.stderr
    assert [node["address"] for node in json.loads(done.stdout)["nodes"]] == ["127.0.0.1"]


@pytest.mark.wide
def test_insecure_is_told_loudly() -> None:
    done = rank_of(OVER_A_NETWORK, "--insecure", "--json")
    assert done.stderr.splitlines()[0].startswith("gpudoctor: INSECURE: this job has no token"), done.stderr
    assert json.loads(done.stdout)["run"]["insecure"] is True
    # only its own node joined
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("token", "mode", "words"),
    [
        ("short", 0o600, "must have 16 to 1024 characters without blanks, and this one has 5 characters"),
        ("with blanks between its words", 0o600, "without blanks"),
        ("0123456789abcdef" * 100, 0o600, "this one has 1600 characters"),
        ("0123456789abcdef", 0o622, "others may write to it"),
        (None, 0, "cannot be read: No such file"),
    ],
)
def test_a_token_file_that_proves_nothing_is_refused_in_one_line(
    tmp_path: Path, token: str | None, mode: int, words: str
) -> None:
    file = tmp_path / "token"
    if token is not None:
        file.write_text(token)
        file.chmod(mode)
    done = rank_of(OVER_A_NETWORK, "--token-file", str(file))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr
    assert str(file) in done.stderr


@pytest.mark.wide
def test_nodes_with_the_same_token_meet_and_no_process_of_theirs_shows_it(tmp_path: Path) -> None:
    """Two ranks on this machine that know each other by a file; every command line and environment is looked at."""
    file = tmp_path / "token"
    secret = "f00dfacef00dfacef00dface"
    file.write_text(secret + "\n")
    file.chmod(0o600)
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29503"}
    seen: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            for folder in Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    try:
                        text = (folder / name).read_bytes()
                    except OSError:
                        continue
                    if secret.encode() in text:
                        seen.append(f"{name}: {text[:200]!r}")

    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    results: dict[str, subprocess.CompletedProcess[str]] = {}

    def run(rank: str) -> None:
        results[rank] = rank_of({**place, "RANK": rank}, "--token-file", str(file), "--json", "--skip", "host")

    ranks = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in "01"]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(120)
    done.set()
    watching.join(30)
    assert seen == []
    assert results["1"].returncode == 0, results["1"].stderr
    report = json.loads(results["0"].stdout)
    assert len(report["nodes"]) == 2
    assert all(node["verdict"] == "pass" for node in report["nodes"]), report["nodes"]


def test_the_store_between_nodes_listens_on_the_address_of_the_job_only() -> None:
    from gpudoctor.probes.inter_node.measure import InterNodeRank
    from gpudoctor.probes.inter_node.rank import Opened

    rank = InterNodeRank("gloo", "127.0.0.3")
    opened = rank.open()
    assert isinstance(opened, Opened)
    socket.create_connection(("127.0.0.3", opened.port), 30).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", opened.port), 30)


def test_an_address_that_is_not_this_nodes_is_said() -> None:
    from gpudoctor.probes.inter_node.measure import InterNodeRank
    from gpudoctor.probes.inter_node.rank import InterNodeFailure

    opened = InterNodeRank("gloo", "192.0.2.9").open()
    assert isinstance(opened, InterNodeFailure)
    assert "its address 192.0.2.9 cannot be listened on" in opened.text


def test_no_rank_destroys_the_group_while_another_still_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.6 that aborts what is under way to the slower one."""
    import torch.distributed

    from gpudoctor.probes.inter_node.measure import InterNodeRank
    from gpudoctor.probes.inter_node.rank import AllReduceTimes, Opened, Rendezvous

    dist: Any = torch.distributed  # not annotated everywhere
    done: list[str] = []

    def measured(_: object, rendezvous: Rendezvous) -> AllReduceTimes:
        if rendezvous.rank:  # the slower one
            store = dist.TCPStore(rendezvous.host, rendezvous.port, is_master=False)
            store.wait(["key/measured"])  # the first one is through
        done.append(f"measured {rendezvous.rank}")
        return AllReduceTimes((1.0,), 4, right=True)

    monkeypatch.setattr(InterNodeRank, "_measure", measured)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("destroyed"))
    two = (InterNodeRank("gloo", "127.0.0.1"), InterNodeRank("gloo", "127.0.0.1"))
    opened = two[0].open()
    assert isinstance(opened, Opened)
    orders = [Rendezvous("key", 2, "127.0.0.1", opened.port, 4, 0.1, 60.0, rank=rank) for rank in range(2)]
    ranks = [threading.Thread(target=r.measure, args=(o,), daemon=True) for r, o in zip(two, orders, strict=True)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert done == ["measured 0", "measured 1", "destroyed", "destroyed"]
