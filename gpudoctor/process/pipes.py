"""Communication between processes: whole lines over pipes, bounded in length and time, and shared anonymous files."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Literal

TURN_S = 0.2  # longest single wait: a signal that arrives just before a wait does not interrupt it
_READ_BYTES = 1 << 16


class LongLineError(ValueError):
    """A line is longer than the limit."""


class DisturbedError(Exception):
    """The descriptor that is watched in addition to the pipes can be read, or was closed."""


@contextmanager
def pipe_with_child(child: Literal["reads", "writes"]) -> Iterator[tuple[int, int]]:
    """Our end and the child's end of a new pipe; the block starts the child, then the child's end is closed here.

    Our end stays open, unless the block raises. Raise OSError.
    """
    reader, writer = os.pipe()
    own, childs = (reader, writer) if child == "writes" else (writer, reader)
    try:
        yield own, childs
    except BaseException:
        os.close(own)
        raise
    finally:
        os.close(childs)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, even if the kernel takes it in parts or the other side made the pipe non-blocking.

    Raise OSError; BrokenPipeError if the other end is closed.
    """
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def ready(descriptors: Iterable[int], wait_s: float) -> list[int]:
    """The descriptors that can be read or have ended; empty after `wait_s`."""
    poll = select.poll()  # not select(): that takes no descriptor above 1023
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, wait_s) * 1000)]


class LineReader:
    """Lines from a pipe. A line longer than `max_bytes` raises LongLineError; with `cut` it loses its beginning."""

    def __init__(self, descriptor: int, max_bytes: int | None = None, *, cut: bool = False) -> None:
        self.descriptor = descriptor
        self.rest = b""
        self._max_bytes = max_bytes
        self._cut = cut

    def lines(self, wait_s: float) -> list[bytes] | None:
        """The lines that have arrived, without newlines; empty if none is complete in time; None at the pipe's end."""
        end_s = monotonic() + wait_s
        while ready([self.descriptor], left_s := end_s - monotonic()):
            found = self.read()
            if found is None or found or left_s <= 0:
                return found
        return []

    def read(self) -> list[bytes] | None:
        """Like `lines`, to be called when the pipe is ready."""
        data = os.read(self.descriptor, _READ_BYTES)
        return self.split(data) if data else None

    def split(self, data: bytes) -> list[bytes]:
        """The lines that this data completes."""
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
    """Pass each pipe's data to its taker until all have ended; False at the deadline (monotonic).

    A taker that returns True stops the reading of its pipe. `over` is called while no data comes: True ends the
    reading as well. Raise DisturbedError if `watched` can be read.
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
    """Keeps data up to a limit, and drops the rest."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def take(self, data: bytes) -> None:
        """A taker for `read_to_end`."""
        self += data[: max(0, self._max_bytes - len(self))]

    def take_until_full(self, data: bytes) -> bool:
        """A taker that ends the reading at the limit."""
        self.take(data)
        return self.is_full

    @property
    def is_full(self) -> bool:
        return len(self) >= self._max_bytes


def anonymous_file(size_bytes: int = 0) -> int:
    """The descriptor of a file of zeroes that processes can share. Raise OSError.

    It has no name, so nothing is left behind, and unlike a pipe it needs no reader.
    """
    try:
        descriptor = os.memfd_create("gpudoctor", 0)
    except (AttributeError, OSError):  # not Linux; or an old kernel, or a sandbox that forbids it
        from gpudoctor.process.temporary_folder import temporary_file

        with temporary_file() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def content(descriptor: int) -> bytes:
    """The whole content; does not move the writer's file offset."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def tail(descriptor: int, max_bytes: int = 1 << 16) -> str:
    """The end of the content, as text."""
    begin = max(0, os.fstat(descriptor).st_size - max_bytes)
    return os.pread(descriptor, max_bytes, begin).decode("utf-8", "replace")
