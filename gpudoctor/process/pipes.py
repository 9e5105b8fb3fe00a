"""What processes say to each other: whole lines over pipes, bounded in length and time; and memory that they share."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Literal

TURN_S = 0.2  # a signal that came just before a wait does not end it: nobody waits for longer at a stretch
_READ_BYTES = 1 << 16


class LongLineError(ValueError):
    """A line has no end within the limit."""


class DisturbedError(Exception):
    """What is watched beside the pipes has something to say, or is gone."""


@contextmanager
def pipe_with_child(child: Literal["reads", "writes"]) -> Iterator[tuple[int, int]]:
    """Our end and the child's end of a new pipe, to start the child in the block: then its end is closed here.

    Ours is left open, unless the block raises. Raise OSError.
    """
    reader, writer = os.pipe()
    ours, theirs = (reader, writer) if child == "writes" else (writer, reader)
    try:
        yield ours, theirs
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, even if the kernel takes it in parts or the other side made the pipe non-blocking.

    Raise OSError; BrokenPipeError if nobody reads.
    """
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def ready(descriptors: Iterable[int], wait_s: float) -> list[int]:
    """Those that can be read, or have ended; none if that takes longer."""
    poll = select.poll()  # not select(): that takes no descriptor above 1023
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, wait_s) * 1000)]


class LineReader:
    """Lines from a pipe. One that has no end after `max_bytes` raises LongLineError; `cut`: its beginning is lost."""

    def __init__(self, descriptor: int, max_bytes: int | None = None, *, cut: bool = False) -> None:
        self.descriptor = descriptor
        self.rest = b""
        self._max_bytes = max_bytes
        self._cut = cut

    def lines(self, wait_s: float) -> list[bytes] | None:
        """Those that have come, without their ends; none if none is whole in time; None at the end of the pipe."""
        end_s = monotonic() + wait_s
        while ready([self.descriptor], left_s := end_s - monotonic()):
            found = self.read()
            if found is None or found or left_s <= 0:
                return found
        return []

    def read(self) -> list[bytes] | None:
        """The same, to be called when the pipe is ready."""
        data = os.read(self.descriptor, _READ_BYTES)
        return self.split(data) if data else None

    def split(self, data: bytes) -> list[bytes]:
        """The lines that this data ends."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if self._max_bytes is not None and len(self.rest) > self._max_bytes:
            if not self._cut:
                raise LongLineError(f"a line of more than {self._max_bytes} bytes")
            self.rest = self.rest[-self._max_bytes :]
        return lines

    def one(self, limit_s: float) -> bytes | None:
        """The first line; None if it does not come within the limit."""
        give_up_s = monotonic() + limit_s
        while (left_s := give_up_s - monotonic()) > 0:
            lines = self.lines(min(left_s, TURN_S))
            if lines is None:
                return None
            if lines:
                return lines[0]
        return None


def read_to_end(
    takers: Mapping[int, Callable[[bytes], bool | None]],
    give_up_s: float,
    *,
    over: Callable[[], bool] | None = None,
    watched: int | None = None,
) -> bool:
    """Give each pipe's data to its taker until all have ended; False at the deadline (monotonic).

    A taker that returns True wants no more of its pipe. `over` is asked while nothing comes: True ends the reading as
    well. Raise DisturbedError if `watched` can be read.
    """
    still_open = set(takers)
    while still_open:
        left_s = give_up_s - monotonic()
        found = ready([*still_open, *([] if watched is None else [watched])], min(left_s, TURN_S))
        if watched in found:
            raise DisturbedError
        for descriptor in found:
            data = os.read(descriptor, _READ_BYTES)
            if not data or takers[descriptor](data):
                still_open.remove(descriptor)
        if not found and over is not None and over():
            return True
        if left_s <= 0:
            return not still_open
    return True


class Bounded(bytearray):
    """Takes what comes, up to a limit, and drops the rest."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def take(self, data: bytes) -> None:
        """A taker for `read_to_end`."""
        self += data[: max(0, self._max_bytes - len(self))]


def anonymous_file(size_bytes: int = 0) -> int:
    """The descriptor of a file of zeroes, which processes share. Raise OSError.

    It has no name, so nothing is left behind, and what is written to it needs no reader.
    """
    try:
        descriptor = os.memfd_create("gpudoctor", 0)
    except (AttributeError, OSError):  # not Linux; or an old kernel, or a sandbox that forbids it
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def content(descriptor: int, max_bytes: int | None = None) -> bytes:
    """What was written, from its beginning; where the writer stands does not change."""
    size_bytes = os.fstat(descriptor).st_size
    return os.pread(descriptor, size_bytes if max_bytes is None else min(size_bytes, max_bytes), 0)


def tail(descriptor: int, max_bytes: int = 1 << 16) -> str:
    """The end of what was written, as text."""
    begin = max(0, os.fstat(descriptor).st_size - max_bytes)
    return os.pread(descriptor, max_bytes, begin).decode("utf-8", "replace")
