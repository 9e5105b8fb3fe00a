"""What passes between a process that calls the driver and its parent: orders, messages, and the call trace.

The call trace names the driver call that each thread of the collector is in. It is in shared memory, so
the parent can read it when the collector no longer answers.
"""

from __future__ import annotations

import mmap
import struct
from _thread import get_ident
from time import monotonic

import msgspec

from gpudoctor.facts.model.driver import on_gpu
from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.node import Driver

SLOTS = 129  # the first thread and 128 GPUs
_HEAD = struct.Struct(
    "=dQiI"
)  # start (monotonic s, or one of the two below), thread id, GPU (-1: none), length of the name
_FINISHED, _BETWEEN_CALLS = 0.0, -1.0
_NAME_BYTES = 72
_SLOT_BYTES = _HEAD.size + _NAME_BYTES
SIZE_BYTES = SLOTS * _SLOT_BYTES


class DriverOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent of any process that calls the driver orders: the descriptors of answers and call trace.

    `nvml` names a replacement for pynvml as module:factory:argument; None is the real one.
    """

    out: int
    trace: int
    nvml: str | None = None


class CollectorOrder(DriverOrder, frozen=True, kw_only=True):
    """An order to read everything below a root; the parent's pid tells its own processes."""

    parent_pid: int
    root: str = "/"


class CollectorMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line from the collector. A driver or GPU that is sent again replaces the earlier one.

    `done`: this GPU is complete. `handle_error`: index and message. `end`: this is the last line.
    """

    driver: Driver | None = None
    gpu: Gpu | None = None
    done: bool = False
    pairs: tuple[GpuPair, ...] = ()
    handle_error: tuple[int, str] | None = None
    end: bool = False


class InFlight(msgspec.Struct, frozen=True):
    """A call that has not returned; `started_s` is monotonic time, `thread` the id that faulthandler prints."""

    slot: int
    call: str
    gpu: int | None
    started_s: float
    thread: int

    @property
    def where(self) -> str:
        return on_gpu(self.call, self.gpu)


class Slot:
    """Records the driver call that one thread is in, so that another process can name a call that never returns."""

    def __init__(self, memory: mmap.mmap, slot: int) -> None:
        self._memory = memory
        self._place = slot % SLOTS * _SLOT_BYTES
        self.leave()

    def enter(self, call: str, gpu: int | None) -> None:
        name = call.encode()[:_NAME_BYTES]
        start = self._place + _HEAD.size
        self._memory[start : start + len(name)] = name
        # the head with the start time is written last: a reader that sees it also sees the name
        number = -1 if gpu is None else gpu
        _HEAD.pack_into(self._memory, self._place, monotonic(), get_ident(), number, len(name))

    def leave(self) -> None:
        struct.pack_into("=d", self._memory, self._place, _BETWEEN_CALLS)

    def finish(self) -> None:
        struct.pack_into("=d", self._memory, self._place, _FINISHED)


class SharedCallTrace:
    """The call trace in shared memory, for both processes."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, SIZE_BYTES)

    def slot(self, slot: int) -> Slot:
        return Slot(self._memory, slot)

    def read(self) -> tuple[tuple[InFlight, ...], int]:
        """The calls that have not returned, and how many threads are between two calls (and so alive)."""
        found = []
        between = 0
        for slot in range(SLOTS):
            place = slot * _SLOT_BYTES
            started, thread, gpu, length = _HEAD.unpack_from(self._memory, place)
            if started == _FINISHED:
                continue
            name = self._memory[place + _HEAD.size : place + _HEAD.size + min(length, _NAME_BYTES)]
            # a slot that changed while it was read belongs to a thread that makes progress
            if started == _BETWEEN_CALLS or _HEAD.unpack_from(self._memory, place)[0] != started:
                between += 1
                continue
            call = name.decode("ascii", "replace")
            found.append(InFlight(slot, call, None if gpu < 0 else gpu, started, thread))
        return tuple(found), between

    def close(self) -> None:
        self._memory.close()
