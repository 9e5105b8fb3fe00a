"""The rendezvous of the processes that a launch engine started on one node: the first checks, the others run its ranks.

The first process (the leader) listens on a socket whose name is derived from its job. Every other process (a local
worker) sends its rank, receives the write ends of its rank's pipes, and starts the rank in the environment that the
engine gave it. A worker ends its rank and itself when the leader shuts the socket down or dies.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.probes.runner.launch_engine import LocalPlacement
from gpudoctor.probes.runner.messages import RankJob
from gpudoctor.probes.runner.rank_starter_client import KILL_GRACE_S, contexts_of, end, start
from gpudoctor.process.pipes import write_all

# The leader starts a moment before or after its workers, and a cold network disk may delay one of them
# further. If no worker connects at all, the leader was started alone.
_FIRST_WORKER_S = 15.0
_ALL_WORKERS_S = 60.0
_LEADER_S = 60.0
_RETRY_S = 0.05
_HELLO_S = 5.0
# one worker may connect at the last moment and say hello as late as it may
LONGEST_RENDEZVOUS_S = _ALL_WORKERS_S + _HELLO_S
_PACKET_BYTES = 1 << 17
_DESCRIPTORS = 3  # of a rank's pipes
_STUCK = b"stuck"


class WorkerHello(msgspec.Struct, frozen=True):
    """A worker's first message: its CUDA_VISIBLE_DEVICES and, if needed, the device files it may open."""

    rank: int
    visible: str | None = None
    openable: tuple[str, ...] = ()


class LocalWorkers:
    """The leader's side. Raises UserError if another gpudoctor of the same job is already the leader."""

    def __init__(self, placement: LocalPlacement, purpose: str = "") -> None:
        self.engine = placement.engine
        self.ranks = placement.ranks
        self._workers: dict[int, tuple[socket.socket, WorkerHello]] = {}
        self._listener: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.bind(_address(placement, purpose))
            self._listener.listen(placement.ranks)
        except OSError as error:
            self._listener.close()
            other_user = _other_user_at(placement, purpose)
            raise UserError(
                f"{placement.engine}: another gpudoctor of this job is under way on this node ({error.strerror}); "
                "let it end first"
                if other_user is None
                else f"{placement.engine}: the socket at which the processes of this job meet is held by another user "
                f"(uid {other_user}); have {placement.engine} start one process a node, which needs none"
            ) from None

    def gather(self) -> bool:
        """Wait for the other processes; False if none connected because the engine started none."""
        if self._listener is not None:
            with self._listener as listener:
                self._listener = None  # wait only once, even if interrupted
                self._accept_all(listener)
        return bool(self._workers)

    @property
    def missing(self) -> list[int]:
        """The ranks whose process has not connected."""
        return [rank for rank in range(1, self.ranks) if rank not in self._workers]

    @property
    def visible(self) -> list[str | None]:
        """CUDA_VISIBLE_DEVICES of this process and of each worker that has connected, in rank order."""
        return [
            os.environ.get("CUDA_VISIBLE_DEVICES"),
            *(self._workers[rank][1].visible for rank in sorted(self._workers)),
        ]

    @property
    def openable(self) -> list[tuple[str, ...]]:
        """The device files that each worker reports it may open."""
        return [hello.openable for _, hello in self._workers.values()]

    def broadcast(self, packet: bytes, *descriptors: int) -> None:
        """Send the same packet to all workers; those that have ended are skipped."""
        for worker, _ in self._workers.values():
            with suppress(OSError):
                socket.send_fds(worker, [packet], descriptors)

    def order(self, rank: int, order: dict[str, Any], life: int, control: int, rank_fd: int) -> None:
        """Have a worker start its rank; if the worker has ended, EOF on its pipes shows it."""
        with suppress(OSError):
            socket.send_fds(self._workers[rank][0], [json.dumps(order).encode()], [life, control, rank_fd])

    def ask_to_end(self) -> None:
        """Have the workers end their ranks, then themselves."""
        for worker, _ in self._workers.values():
            with suppress(OSError):  # the other end has closed it
                worker.shutdown(socket.SHUT_WR)

    def end_ranks(self, teardown_s: float = KILL_GRACE_S) -> bool:
        """Shut the workers down and wait for them; False if one could not end its rank in the time it may take."""
        self.ask_to_end()
        deadline = time.monotonic() + KILL_GRACE_S + teardown_s
        answers = [_last_answer(worker, deadline) for worker, _ in self._workers.values()]
        self.disconnect()
        return _STUCK not in answers

    def end(self) -> None:
        """End all workers, including those yet to connect, which would otherwise wait for a leader."""
        self.gather()
        self.end_ranks()

    def disconnect(self) -> None:
        """Close every connection immediately and accept no more."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for worker, _ in self._workers.values():
            worker.close()
        self._workers.clear()

    def _accept_all(self, listener: socket.socket) -> None:
        began = time.monotonic()
        while self.missing:
            left_s = began + (_ALL_WORKERS_S if self._workers else _FIRST_WORKER_S) - time.monotonic()
            if left_s <= 0:
                return
            listener.settimeout(left_s)
            try:
                worker, _ = listener.accept()
            except TimeoutError:
                return
            self._accept(worker)

    def _accept(self, worker: socket.socket) -> None:
        hello = None
        try:
            if _uid_behind(worker) == os.getuid():  # before reading: another user could keep us waiting
                worker.settimeout(_HELLO_S)
                hello = msgspec.json.decode(worker.recv(_PACKET_BYTES), type=WorkerHello)
        except (OSError, msgspec.DecodeError):
            pass
        if hello is not None and hello.rank in self.missing:
            self._workers[hello.rank] = (worker, hello)
        else:
            worker.close()


def run_local_worker(placement: LocalPlacement) -> str | None:
    """Act as a local worker: start and end one rank for the leader. Returns why that was impossible, or None."""
    leader = leader_of(placement)
    if leader is None:
        return (
            f"{placement.engine} started this process as number {placement.rank} of {placement.ranks} on this node, "
            f"and number 0 did not come within {_LEADER_S:g} s; give all of them the same command line"
        )
    with leader:
        try:
            leader.send(msgspec.json.encode(WorkerHello(placement.rank, os.environ.get("CUDA_VISIBLE_DEVICES"))))
            packet, descriptors, _, _ = socket.recv_fds(leader, _PACKET_BYTES, _DESCRIPTORS)
        except OSError:
            return None
        if packet and len(descriptors) < _DESCRIPTORS:
            for descriptor in descriptors:
                os.close(descriptor)
            return f"{placement.engine}: this process may not open {_DESCRIPTORS} more files: raise ulimit -n"
        if packet:
            _serve(json.loads(packet), descriptors, leader)
    return None


def _serve(order: dict[str, Any], descriptors: list[int], leader: socket.socket) -> None:
    life, control, rank_fd = descriptors
    try:
        with (Path(order["job"]["folder"]) / f"starter-{order['ranks'][0]}.stderr").open("wb") as output:
            process = start(order, life, control, [rank_fd], output)
    except OSError as error:
        write_all(control, json.dumps({"type": "StartFailure", "text": str(error)}).encode() + b"\n")
        return
    finally:
        for descriptor in descriptors:
            os.close(descriptor)  # only the starter holds them now, so EOF means that it has ended
    try:
        with suppress(OSError):  # an error, like an answer, means that the leader has ended
            leader.recv(1)
    finally:
        stuck = end(process, has_ranks=True, contexts=contexts_of(msgspec.convert(order["job"], RankJob)))
    if stuck:
        with suppress(OSError):
            leader.send(_STUCK)


def leader_of(placement: LocalPlacement, purpose: str = "") -> socket.socket | None:
    """A connection to the first process of the job on this node; None if it does not listen within a minute."""
    deadline = time.monotonic() + _LEADER_S
    while True:
        leader = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            leader.setblocking(False)  # another user who holds the name and accepts nothing would block us forever
            leader.connect(_address(placement, purpose))
            if _uid_behind(leader) == os.getuid():  # else another user would get our rank
                leader.setblocking(True)
                return leader
        except OSError:
            pass  # it does not listen yet
        leader.close()
        if time.monotonic() >= deadline:
            return None
        time.sleep(_RETRY_S)


def openable_gpus() -> tuple[str, ...]:
    """The GPU device files this process may open, without opening any: a Slurm task may be confined to its own GPUs."""
    names = os.listdir("/dev")  # noqa: PTH208 - names, not Paths
    gpus = sorted(name for name in names if name.startswith("nvidia") and name[6:].isdecimal())
    return tuple(name for name in gpus if os.access(f"/dev/{name}", os.R_OK | os.W_OK))


def _address(placement: LocalPlacement, purpose: str = "") -> bytes:
    """The job's abstract socket address: it leaves no file behind, and is different for every job."""
    digest = hashlib.sha256(
        f"{placement.engine}/{placement.ranks}/{placement.job}{purpose and f'/{purpose}'}".encode()
    ).hexdigest()
    return f"\0gpudoctor-{os.getuid()}-{digest[:32]}".encode()


def _other_user_at(placement: LocalPlacement, purpose: str) -> int | None:
    """The uid of the listener at the job's address; None if it is ours or there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.setblocking(False)
        try:
            other.connect(_address(placement, purpose))
            uid = _uid_behind(other)
        except OSError:
            return None
    return uid if uid != os.getuid() else None


def _uid_behind(connection: socket.socket) -> int:
    """The uid of the process at the other end; unix(7): struct ucred is pid, uid, gid."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


def _last_answer(worker: socket.socket, deadline: float) -> bytes:
    try:
        worker.settimeout(max(0.01, deadline - time.monotonic()))
        return worker.recv(len(_STUCK))
    except OSError:
        return b""  # its rank ends at the latest when this process does, with the run's life pipe
