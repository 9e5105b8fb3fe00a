"""Where an engine has started several processes on a node: the first one checks, the others host its ranks.

The first process (the leader) listens on a socket that only its own job knows; each other one (a
guest) says which rank it is, gets the writing ends of its rank's pipes, and starts the rank in the
environment that the engine gave it. A guest ends with its rank when the leader lets go of the
socket or dies.
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
from gpudoctor.probes.runner.starter_client import KILL_GRACE_S, end, start
from gpudoctor.process.pipes import write_all

# The leader is the first to start and starts a moment before or after its guests; a cold network
# disk may keep one of them longer. Where not even one came, the leader was started alone.
_FIRST_GUEST_S = 15.0
_ALL_GUESTS_S = 60.0
_LEADER_S = 60.0
LONGEST_GATHERING_S = _FIRST_GUEST_S + _ALL_GUESTS_S
_RETRY_S = 0.05
_HELLO_S = 5.0
_PACKET_BYTES = 1 << 17
_STUCK = b"stuck"


class WorkerHello(msgspec.Struct, frozen=True):
    """What a guest says of itself: its CUDA_VISIBLE_DEVICES, and if it is asked the device files that it may open."""

    rank: int
    visible: str | None = None
    openable: tuple[str, ...] = ()


class LocalWorkers:
    """The leader's side. Raises UserError where another gpudoctor of the same job has it already."""

    def __init__(self, place: LocalPlacement, purpose: str = "") -> None:
        self.engine = place.engine
        self.ranks = place.ranks
        self._guests: dict[int, tuple[socket.socket, WorkerHello]] = {}
        self._door: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._door.bind(_address(place, purpose))
            self._door.listen(place.ranks)
        except OSError as error:
            self._door.close()
            stranger = _stranger_at(place, purpose)
            raise UserError(
                f"{place.engine}: another gpudoctor of this job is under way on this node ({error.strerror}); "
                "let it end first"
                if stranger is None
                else f"{place.engine}: the socket at which the processes of this job meet is held by another user "
                f"(uid {stranger}); have {place.engine} start one process a node, which needs none"
            ) from None

    def gather(self) -> bool:
        """Wait for the other processes; False where not one came, which is when nobody started them."""
        if self._door is not None:
            with self._door as door:
                self._door = None  # who waited once, or was interrupted while it did, does not wait again
                self._admit_all(door)
        return bool(self._guests)

    @property
    def missing(self) -> list[int]:
        """The ranks whose process has not come."""
        return [rank for rank in range(1, self.ranks) if rank not in self._guests]

    @property
    def visible(self) -> list[str | None]:
        """CUDA_VISIBLE_DEVICES of each process, in rank order; to be asked when all have come."""
        first = os.environ.get("CUDA_VISIBLE_DEVICES")
        return [first, *(self._guests[rank][1].visible for rank in range(1, self.ranks))]

    @property
    def visible_of_those_here(self) -> list[str | None]:
        """CUDA_VISIBLE_DEVICES of this process and of each that has come."""
        return [os.environ.get("CUDA_VISIBLE_DEVICES"), *(hello.visible for _, hello in self._guests.values())]

    @property
    def openable(self) -> list[tuple[str, ...]]:
        """The device files that each guest may open, as it says."""
        return [hello.openable for _, hello in self._guests.values()]

    def tell(self, packet: bytes, *descriptors: int) -> None:
        """Send all guests the same; one that is gone needs nothing."""
        for guest, _ in self._guests.values():
            with suppress(OSError):
                socket.send_fds(guest, [packet], descriptors)

    def give(self, rank: int, order: dict[str, Any], life: int, control: int, rank_fd: int) -> None:
        """Have a guest start its rank; where it is gone, the end of its pipes will tell."""
        try:
            socket.send_fds(self._guests[rank][0], [json.dumps(order).encode()], [life, control, rank_fd])
        except OSError:
            return

    def let_go(self) -> None:
        """Have the guests end their ranks, and themselves."""
        for guest, _ in self._guests.values():
            _quietly_shut(guest)

    def ended(self) -> bool:
        """Wait for the guests to end, as long as that may take; False where one could not end its rank."""
        self.let_go()
        deadline = time.monotonic() + 2 * KILL_GRACE_S
        answers = [_last_word(guest, deadline) for guest, _ in self._guests.values()]
        for guest, _ in self._guests.values():
            guest.close()
        self._guests.clear()
        return _STUCK not in answers

    def close(self) -> None:
        """Let go of all guests, of those too that are still to come: they would wait for a leader."""
        self.gather()
        self.ended()

    def drop(self) -> None:
        """Close every connection at once, and admit nobody more."""
        if self._door is not None:
            self._door.close()
            self._door = None
        for guest, _ in self._guests.values():
            guest.close()
        self._guests.clear()

    def _admit_all(self, door: socket.socket) -> None:
        began = time.monotonic()
        while self.missing:
            left_s = began + (_ALL_GUESTS_S if self._guests else _FIRST_GUEST_S) - time.monotonic()
            if left_s <= 0:
                return
            door.settimeout(left_s)
            try:
                guest, _ = door.accept()
            except TimeoutError:
                return
            self._admit(guest)

    def _admit(self, guest: socket.socket) -> None:
        hello = None
        try:
            if _uid_behind(guest) == os.getuid():  # before anything is heard: a stranger would keep us waiting
                guest.settimeout(_HELLO_S)
                hello = msgspec.json.decode(guest.recv(_PACKET_BYTES), type=WorkerHello)
        except (OSError, msgspec.DecodeError):
            pass
        if hello is not None and hello.rank in self.missing:
            self._guests[hello.rank] = (guest, hello)
        else:
            guest.close()


def host_rank(place: LocalPlacement) -> str | None:
    """Be a guest: start and end one rank for the leader. None at the end, or why it could not be, in one line."""
    leader = leader_of(place)
    if leader is None:
        return (
            f"{place.engine} started this process as number {place.rank} of {place.ranks} on this node, and number 0 "
            f"did not come within {_LEADER_S:g} s; give all of them the same command line"
        )
    with leader:
        try:
            leader.send(msgspec.json.encode(WorkerHello(place.rank, os.environ.get("CUDA_VISIBLE_DEVICES"))))
            packet, descriptors, _, _ = socket.recv_fds(leader, _PACKET_BYTES, 3)
        except OSError:
            return None
        if packet:
            _serve(json.loads(packet), descriptors, leader)
    return None


def _serve(order: dict[str, Any], descriptors: list[int], leader: socket.socket) -> None:
    life, control, rank_fd = descriptors
    try:
        try:
            with (Path(order["job"]["folder"]) / f"starter-{order['ranks'][0]}.stderr").open("wb") as output:
                process = start(order, life, control, [rank_fd], output)
        except OSError as error:
            write_all(control, json.dumps({"type": "CannotStart", "text": str(error)}).encode() + b"\n")
            return
    finally:
        for descriptor in descriptors:
            os.close(descriptor)  # the starter alone holds them now: their end is its end
    stuck = False
    try:
        _wait_until_let_go(leader)
    finally:
        stuck = end(process, has_ranks=True)
    if stuck:
        leader.send(_STUCK)


def _wait_until_let_go(leader: socket.socket) -> None:
    try:
        leader.recv(1)
    except OSError:
        return  # the leader is gone


def leader_of(place: LocalPlacement, purpose: str = "") -> socket.socket | None:
    """A connection to the first process of the job on this node; None if there is none within a minute."""
    deadline = time.monotonic() + _LEADER_S
    while True:
        leader = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            leader.setblocking(False)  # a stranger who sits on the name, and admits nobody, would hold us for ever
            leader.connect(_address(place, purpose))
            if _uid_behind(leader) == os.getuid():  # else he would be given our rank
                leader.setblocking(True)
                return leader
        except OSError:
            pass  # not there yet
        leader.close()
        if time.monotonic() >= deadline:
            return None
        time.sleep(_RETRY_S)


def openable_gpus() -> tuple[str, ...]:
    """The device files of GPUs that this process may open: a Slurm task may be confined to its own. Opens none."""
    names = os.listdir("/dev")  # noqa: PTH208 - names, not Paths
    gpus = sorted(name for name in names if name.startswith("nvidia") and name[6:].isdecimal())
    return tuple(name for name in gpus if os.access(f"/dev/{name}", os.R_OK | os.W_OK))


def _address(place: LocalPlacement, purpose: str = "") -> bytes:
    """An abstract socket: no file to leave behind, and two jobs do not meet."""
    digest = hashlib.sha256(f"{place.engine}/{place.ranks}/{place.job}{purpose and f'/{purpose}'}".encode()).hexdigest()
    return f"\0gpudoctor-{os.getuid()}-{digest[:32]}".encode()


def _stranger_at(place: LocalPlacement, purpose: str) -> int | None:
    """The user who listens at the job's address, where he is another one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.setblocking(False)
        try:
            other.connect(_address(place, purpose))
            uid = _uid_behind(other)
        except OSError:
            return None
    return uid if uid != os.getuid() else None


def _uid_behind(connection: socket.socket) -> int:
    """The user at the other end; unix(7): struct ucred is pid, uid, gid."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


def _last_word(guest: socket.socket, deadline: float) -> bytes:
    try:
        guest.settimeout(max(0.01, deadline - time.monotonic()))
        return guest.recv(len(_STUCK))
    except OSError:
        return b""  # the pipe of the run ends with this process, and with it the rank


def _quietly_shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the other end is gone
