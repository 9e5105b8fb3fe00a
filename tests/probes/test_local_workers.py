"""A node that users share: the socket at which the processes of a job meet has a name that everybody can work out."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from gpudoctor.errors import UserError
from gpudoctor.probes.runner import local_workers
from gpudoctor.probes.runner.launch_engine import LocalPlacement
from gpudoctor.probes.runner.local_workers import LocalWorkers, WorkerHello, run_local_worker
from tests.needs import needs

pytestmark = needs("root")
STRANGER = 12345


@contextmanager
def stranger(act: Callable[[], object]) -> Iterator[None]:
    """A process of another user that performs an action and keeps its result; it exits when the context does."""
    ready, tell = os.pipe()
    wait, leave = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(STRANGER, STRANGER, STRANGER)
            held = act()
            os.write(tell, b"!")
            os.close(leave)
            os.read(wait, 1)
            del held
        finally:
            os._exit(0)
    os.close(tell)
    try:
        assert os.read(ready, 1) == b"!"
        yield
    finally:
        for descriptor in (leave, ready, wait):
            os.close(descriptor)
        os.waitpid(pid, 0)


def connected(address: bytes) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    return connection


def listening(address: bytes) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(4)
    return listener


@pytest.fixture
def place(request: pytest.FixtureRequest) -> LocalPlacement:
    return LocalPlacement("srun", 1, 2, f"{request.node.name}{os.getpid()}")


def test_strangers_who_come_first_and_say_nothing_keep_no_rank_out(place: LocalPlacement) -> None:
    """Each was waited for, until the time of the real ones was over."""
    leader = LocalWorkers(place)
    address = local_workers._address(place)
    came: list[socket.socket] = []

    def worker() -> None:
        came.append(connected(address))
        came[0].send(msgspec.json.encode(WorkerHello(1)))

    with stranger(lambda: [connected(address) for _ in range(3)]):
        thread = threading.Thread(target=worker, daemon=True)
        thread.start()
        assert leader.gather()
        thread.join()
    assert leader.missing == []
    came[0].close()
    leader.end()


def test_a_stranger_who_says_that_he_is_a_rank_is_none(place: LocalPlacement, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_workers, "_FIRST_WORKER_S", 0.5)
    leader, address = LocalWorkers(place), local_workers._address(place)

    def pretend() -> socket.socket:
        connection = connected(address)
        connection.send(msgspec.json.encode(WorkerHello(1)))
        return connection

    with stranger(pretend):
        assert not leader.gather()
    leader.end()


def test_a_stranger_who_took_the_name_is_named_and_given_no_rank(
    place: LocalPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_workers, "_LEADER_S", 0.2)
    address = local_workers._address(place)
    with stranger(lambda: listening(address)):
        with pytest.raises(UserError, match=rf"held by another user \(uid {STRANGER}\)"):
            LocalWorkers(place)
        assert "number 0 did not come" in (run_local_worker(place) or "")


def test_a_worker_that_may_open_no_more_files_says_so(place: LocalPlacement, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(local_workers, "leader_of", lambda _: worker)
    # what the kernel does at the limit: it hands over as many descriptors as there is room for
    monkeypatch.setattr(socket, "recv_fds", lambda *_: (b"{}", [os.open(os.devnull, os.O_RDONLY)], 0, None))
    with leader:
        assert "ulimit -n" in (run_local_worker(msgspec.structs.replace(place, rank=1)) or "")
