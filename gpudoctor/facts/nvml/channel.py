"""What passes between the collector process and its parent: messages, the call trace, and parts of GPUs.

The call trace names the driver call that each thread of the collector is in. It is in shared memory, so
the parent can read it when the collector no longer answers. Beside it is what was read so far of each GPU that is not
complete: as messages, these would be ten for each GPU, of which nobody needs but the last.
"""

from __future__ import annotations

import mmap
import struct
from _thread import get_ident
from time import monotonic

import msgspec

from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.node import Driver

SLOTS = 129  # the first thread and 128 GPUs
_HEAD = struct.Struct(
    "=dQiI"
)  # start (monotonic s, or one of the two below), thread id, GPU (-1: none), length of the name
_FINISHED, _BETWEEN_CALLS = 0.0, -1.0
_NAME_BYTES = 72
_SLOT_BYTES = _HEAD.size + _NAME_BYTES
_TRACE_BYTES = SLOTS * _SLOT_BYTES
_PART_HEAD = struct.Struct("=I")  # length of the message; 0: none
_PART_BYTES = 1 << 15  # a GPU with 18 links and one process needs an eighth
SIZE_BYTES = _TRACE_BYTES + SLOTS * _PART_BYTES


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
        """The call and its GPU, for a message."""
        return self.call if self.gpu is None else f"{self.call} on GPU {self.gpu}"


class CallTrace:
    """Records the driver call that a thread is in, so that another process can name a call that never returns.

    This class records nothing: it is for callers that nobody watches.
    """

    def enter(self, call: str, gpu: int | None) -> None:
        pass

    def leave(self) -> None:
        pass

    def finish(self) -> None:
        pass


class Slot(CallTrace):
    """The call that one thread is in, in shared memory."""

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
    """The call trace and the parts in shared memory, for both processes."""

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

    def keep_part(self, index: int, message: bytes) -> bool:
        """Keep what was read so far of a GPU in place of what was kept before; False, with none kept, if too long."""
        place = _TRACE_BYTES + index % SLOTS * _PART_BYTES
        start = place + _PART_HEAD.size
        _PART_HEAD.pack_into(self._memory, place, 0)  # a process that is killed here leaves none
        if len(message) > _PART_BYTES - _PART_HEAD.size:
            return False
        self._memory[start : start + len(message)] = message
        _PART_HEAD.pack_into(self._memory, place, len(message))
        return True

    def part(self, index: int) -> bytes:
        """The message that was kept last for a GPU; empty if there is none."""
        place = _TRACE_BYTES + index % SLOTS * _PART_BYTES
        (length,) = _PART_HEAD.unpack_from(self._memory, place)
        start = place + _PART_HEAD.size
        return self._memory[start : start + min(length, _PART_BYTES - _PART_HEAD.size)]

    def close(self) -> None:
        self._memory.close()
