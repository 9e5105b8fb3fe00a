"""The record of this process: a mapped file that outlives it."""

from __future__ import annotations

import mmap
import os

from . import layout


class RecordFile:
    """Writes the record. Raise OSError if the file cannot be made whole, as on a full disk.

    All blocks are reserved first: a store into a mapped hole of a full disk would end the process with SIGBUS.
    """

    def __init__(self, path: str, stack_signal: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, layout.FILE_BYTES)
            self._map = mmap.mmap(descriptor, layout.FILE_BYTES)
        except BaseException:
            os.unlink(path)  # noqa: PTH108
            raise
        finally:
            os.close(descriptor)
        self._output_total = 0
        self._kept = 0
        self._bad = [0, 0]
        self._now = layout.NOW.pack_into
        self._step = layout.STEP.pack_into
        layout.PLACE.pack_into(self._map, layout.PLACE_AT, -1, -1, -1, 0, -1)
        # the identity comes last: a reader takes the file for a record once it is there
        identity = (layout.MAGIC, os.getpid(), start_time(), stack_signal)
        layout.IDENTITY.pack_into(self._map, layout.IDENTITY_AT, *identity)

    def place(self, rank: int, local_rank: int, world: int, on_gpu: bool, gpu: int) -> None:
        layout.PLACE.pack_into(self._map, layout.PLACE_AT, rank, local_rank, world, int(on_gpu), gpu)

    def now(self, steps: int, marks: int, phase: int, since_ns: int) -> None:
        self._now(self._map, layout.NOW_AT, steps, marks, phase, since_ns)

    def sampled(self, phase: int, moved_ns: int) -> None:
        """In a step that is not timed: its phase, and when it was seen to move."""
        layout.SAMPLED.pack_into(self._map, layout.SAMPLED_AT, phase, moved_ns)

    def ended(self, how: int, at_ns: int) -> None:
        """Python ends: 1 normally, 2 by an exception."""
        layout.ENDED.pack_into(self._map, layout.ENDED_AT, how, at_ns)

    def collective(self, name: bytes) -> None:
        at, size = layout.COLLECTIVE_AT, layout.COLLECTIVE_BYTES
        self._map[at : at + size] = name[:size].ljust(size, b"\0")

    def step(self, number: int, values: tuple[float, ...]) -> None:
        """Write a step, `values` as in `layout.STEP` without its number, into the ring."""
        at = layout.STEPS_AT + (self._kept % layout.STEPS_KEPT) * layout.STEP.size
        self._step(self._map, at, number, *values)
        self._kept += 1
        self._write_kept()

    def not_finite(self, number: int, loss: bool, gradients: bool) -> None:
        """A step has a loss, or gradients, that are not finite; only the first counts."""
        bad = (loss, gradients)
        self._bad = [first or (number + 1 if now else 0) for first, now in zip(self._bad, bad)]  # noqa: B905
        self._write_kept()

    def _write_kept(self) -> None:
        layout.KEPT.pack_into(self._map, layout.KEPT_AT, self._kept, *self._bad)

    def output(self, text: bytes) -> None:
        """Keep output: the first bytes, and the last ones in a ring."""
        total = self._output_total
        if total < layout.OUTPUT_HEAD_BYTES:
            head = text[: layout.OUTPUT_HEAD_BYTES - total]
            self._put(layout.OUTPUT_HEAD_AT + total, head)
            total += len(head)
            text = text[len(head) :]
        while text:
            at = (total - layout.OUTPUT_HEAD_BYTES) % layout.OUTPUT_RING_BYTES
            part = text[: layout.OUTPUT_RING_BYTES - at]
            self._put(layout.OUTPUT_RING_AT + at, part)
            total += len(part)
            text = text[len(part) :]
        self._output_total = total
        layout.OUTPUT_TOTAL.pack_into(self._map, layout.OUTPUT_TOTAL_AT, total)

    def _put(self, at: int, data: bytes) -> None:
        self._map[at : at + len(data)] = data


def start_time() -> int:
    """When this process started, in clock ticks since boot: with the pid it names a process for good."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        return int(file.read().rpartition(")")[2].split()[19])
