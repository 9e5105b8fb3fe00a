"""Work on what strangers wrote, in a forked child with limits of memory, time and output.

A file may be made to exhaust whoever reads it. The child has the default signals, so that what ends the group ends it,
and dies with this process.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from time import monotonic

import msgspec

from gpudoctor.process.die_with_parent import die_with_parent
from gpudoctor.process.ending import ENDING_SIGNALS
from gpudoctor.process.forked import ForkedProcess
from gpudoctor.process.pipes import Bounded, pipe_with_child, read_to_end, write_all
from gpudoctor.process.signals import signals_postponed

_MEMORY_ENDED = 77  # the child's exit status


class ChildLimits(msgspec.Struct, frozen=True):
    """What a child may take: memory beyond what it shares, time, and bytes of its result."""

    memory_bytes: int = 1 << 30
    seconds: float = 30.0
    result_bytes: int = 256 << 20


LIMITS = ChildLimits()


class ChildRefusedError(Exception):
    """A child took more than its limits, or died; the message gives the reason in one line."""


class BoundedChild:
    """Runs `work` in a child; `result` returns the bytes that it returned. Raises OSError if fork fails."""

    def __init__(self, work: Callable[[], bytes], limits: ChildLimits) -> None:
        self._limits = limits
        self._ends_s = monotonic() + limits.seconds
        parent = os.getpid()
        with pipe_with_child("writes") as (self._reader, writer):
            self._process = ForkedProcess(lambda: _be_child(work, limits, parent, writer))

    def result(self) -> bytes:
        """Wait for the bytes. Raises ChildRefusedError."""
        data = Bounded(self._limits.result_bytes + 1)
        if not read_to_end({self._reader: data.take_until_full}, self._ends_s):
            raise ChildRefusedError(f"reading it takes longer than {self._limits.seconds:g} s")
        if data.is_full:
            raise ChildRefusedError(f"what it holds is larger than {self._limits.result_bytes >> 20} MiB")
        status = self._process.ends_within(max(self._ends_s - monotonic(), 0.1))
        if status == _MEMORY_ENDED:
            raise ChildRefusedError(f"reading it needs more than {self._limits.memory_bytes >> 20} MiB of memory")
        if status != 0:
            raise ChildRefusedError(f"the process that read it ended with status {status}")
        return bytes(data)

    def close(self) -> None:
        """End the child, if it still runs."""
        if self._process.returncode is None and self._process.poll() is None:
            self._process.send(signal.SIGKILL)
            self._process.ends_within(5.0)
        os.close(self._reader)


def bounded(work: Callable[[], bytes], limits: ChildLimits = LIMITS) -> bytes:
    """What `work` returns, from a child. Raises ChildRefusedError."""
    return next(bounded_results([work], workers=1, limits=limits))


def bounded_results(
    works: Iterable[Callable[[], bytes]], *, workers: int, limits: ChildLimits = LIMITS
) -> Iterator[bytes]:
    """What each of `works` returns, in order, from at most so many children at once. Raises ChildRefusedError."""
    left = iter(works)
    children: list[BoundedChild] = []
    try:
        for work in islice(left, workers):
            _start(work, limits, children)
        while children:
            yield children[0].result()
            children.pop(0).close()
            for work in islice(left, 1):
                _start(work, limits, children)
    finally:
        for child in children:
            child.close()


def _start(work: Callable[[], bytes], limits: ChildLimits, children: list[BoundedChild]) -> None:
    try:
        with signals_postponed():  # a child that is not listed yet would not be ended
            children.append(BoundedChild(work, limits))
    except OSError as error:
        raise ChildRefusedError(f"no process to read it: {error.strerror}") from None


def _be_child(work: Callable[[], bytes], limits: ChildLimits, parent: int, writer: int) -> None:
    for number in ENDING_SIGNALS:  # the parent's handlers are inherited
        signal.signal(number, signal.SIG_DFL)
    die_with_parent(parent)
    gc.disable()  # millions of small objects would be looked through again and again
    with suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + limits.memory_bytes,) * 2)
    with suppress(OSError, ValueError):
        seconds = int(limits.seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    try:
        write_all(writer, work())
    except MemoryError:
        os._exit(_MEMORY_ENDED)
