"""The progress of each rank, in memory shared with the parent."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import msgspec

_FIELDS = 2  # moves, step
_BYTES_PER_FIELD = 8


class BoardEntry(msgspec.Struct, frozen=True):
    """The progress of one rank.

    `moves` counts every start of a phase and every entry into and return from a wait for other
    ranks. All ranks make the same moves, so the rank with the fewest is the one that is behind.
    """

    moves: int = 0
    step: int = 0


class ProgressBoard:
    """One row of counters per rank, in memory shared with the parent; only that rank writes it.

    A line on a pipe would wake the parent and disturb the measurement on a small machine; a store does not, and can
    still be read after the rank has died. Raises OSError if there is no disk space for it.
    """

    def __init__(self, path: Path, ranks: int) -> None:
        size = ranks * _FIELDS * _BYTES_PER_FIELD
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # not ftruncate: on a full disk the first store into a hole would kill the rank with SIGBUS
            os.posix_fallocate(descriptor, 0, size)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._cells = memoryview(self._memory).cast("q")

    def entry(self, rank: int) -> BoardEntry:
        return BoardEntry(*self._cells[rank * _FIELDS : (rank + 1) * _FIELDS])

    def move(self, rank: int) -> None:
        self._cells[rank * _FIELDS] += 1

    def set_moves(self, rank: int, moves: int) -> None:
        """Set the count to the value that all ranks agreed on, because one of them may have skipped some moves."""
        self._cells[rank * _FIELDS] = moves

    def begin_step(self, rank: int, step: int) -> None:
        """Set the step of the phase, counted from 1; 0: the phase has no steps."""
        self._cells[rank * _FIELDS + 1] = step

    def close(self) -> None:
        self._cells.release()
        self._memory.close()
