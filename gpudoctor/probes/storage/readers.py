"""One measurement: reads files by several processes at once, and times it."""

from __future__ import annotations

import mmap
import os
import random
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from time import monotonic

import msgspec

from gpudoctor.facts.model.measured_hardware import ReadMethod, ReadPattern, StorageRate
from gpudoctor.probes.storage.listing import DataFile
from gpudoctor.process.die_with_parent import die_with_parent
from gpudoctor.process.ending import kill_all
from gpudoctor.process.forked import ForkedProcess
from gpudoctor.process.pipes import Bounded, pipe_with_child, read_to_end, write_all

SEQUENTIAL_BYTES = 1 << 20
RANDOM_BYTES = 128 << 10
_SLACK_S = 8.0  # one read of a slow source may take seconds
_MOST_ANSWER_BYTES = 8 << 20
_MOST_TIMES = 20_000  # kept of one reader; more would not change the percentiles
# like a data loader, which opens each small file again and keeps shards open
_KEPT_OPEN_BYTES = 1 << 20
_MOST_OPEN = 128


class Piece(msgspec.Struct, frozen=True):
    """One read: index of the file, offset and length in bytes."""

    file: int
    offset: int
    length: int


class _Task(msgspec.Struct, frozen=True):
    files: Sequence[DataFile]
    pattern: ReadPattern
    method: ReadMethod
    seconds: float
    most_bytes: int


class ReadersStuckError(Exception):
    """Readers did not return in time, or failed; the text gives the reason."""


def pieces_of(files: Sequence[DataFile], pattern: ReadPattern, most: int = 1 << 16) -> list[Piece]:
    """The reads of all files: in order (sequential), or shuffled, in the same way each time (random)."""
    block = SEQUENTIAL_BYTES if pattern == "sequential" else RANDOM_BYTES
    every = [
        Piece(place, offset, min(block, file.size_bytes - offset))
        for place, file in enumerate(files)
        for offset in _offsets(file.size_bytes, block, max(1, most // len(files)), pattern)
    ]
    if pattern == "random":
        random.Random(len(every)).shuffle(every)
    return every


def _offsets(size: int, block: int, most: int, pattern: ReadPattern) -> Sequence[int]:
    every = range(0, size, block)
    if len(every) <= most:
        return every
    return every[:most] if pattern == "sequential" else random.Random(size).sample(every, most)


def read_at_once(
    files: Sequence[DataFile],
    pieces: Sequence[Piece],
    pattern: ReadPattern,
    readers: int,
    method: ReadMethod,
    seconds: float,
    most_bytes: int,
) -> StorageRate:
    """Have `readers` processes each read its share of the pieces, one read at a time, and sum their results.

    With O_DIRECT the pieces are repeated when they run out, and shared if there are fewer than readers. Otherwise
    none is read twice, since the page cache would answer. A file that vanished or was truncated meanwhile counts as a
    lost read. Raises ReadersStuckError, OSError.
    """
    task = _Task(files, pattern, method, seconds, most_bytes // readers)
    processes: list[ForkedProcess] = []
    answers: dict[int, Bounded] = {}
    go, begin = os.pipe()
    try:
        each = -(-len(pieces) // readers)
        for place in range(readers):
            own = pieces[place::readers] if pattern == "random" else pieces[place * each : (place + 1) * each]
            if method == "direct":
                own = own or pieces[-1:]
            with pipe_with_child("writes") as (parent, other):
                processes.append(ForkedProcess(partial(_be_reader, other, go, task, own)))
            answers[parent] = Bounded(_MOST_ANSWER_BYTES)
        write_all(begin, bytes(readers))
        takers = {descriptor: answer.take for descriptor, answer in answers.items()}
        if not read_to_end(takers, monotonic() + seconds + _SLACK_S):
            raise ReadersStuckError(f"a read did not come back within {seconds + _SLACK_S:g} s")
    finally:
        kill_all(processes, 1.0, group=False)
        for descriptor in (go, begin, *answers):
            os.close(descriptor)
    try:
        results = [msgspec.json.decode(answer, type=_ReaderResult) for answer in answers.values()]
    except msgspec.DecodeError:
        raise ReadersStuckError("a reader ended without an answer") from None
    return _summed(results, pattern, readers)


class _ReaderResult(msgspec.Struct):
    begin_s: float = 0.0
    end_s: float = 0.0
    read_bytes: int = 0
    times_us: list[float] = []
    reads: int = 0
    lost: int = 0
    error: str | None = None


def _summed(results: Sequence[_ReaderResult], pattern: ReadPattern, readers: int) -> StorageRate:
    error = next((each.error for each in results if each.error), None)
    if error is not None:
        raise ReadersStuckError(error)
    did = [each for each in results if each.reads]
    total, reads = sum(each.read_bytes for each in did), sum(each.reads for each in did)
    if not total:
        raise ReadersStuckError("not one byte was read")
    seconds = max(max(each.end_s for each in did) - min(each.begin_s for each in did), 1e-9)
    times = sorted(time for each in did for time in each.times_us)
    block = SEQUENTIAL_BYTES if pattern == "sequential" else RANDOM_BYTES
    return StorageRate(
        pattern=pattern,
        readers=readers,
        block_bytes=min(block, -(-total // reads)),
        gb_s=total / seconds / 1e9,
        reads=reads,
        lost_reads=sum(each.lost for each in results),
        seconds=seconds,
        p50_us=times[len(times) // 2],
        p99_us=times[min(len(times) - 1, len(times) * 99 // 100)],
    )


def _be_reader(pipe: int, go: int, task: _Task, pieces: Sequence[Piece]) -> None:
    die_with_parent()
    opened = OpenFiles(task.files, task.method, task.pattern)
    buffer = mmap.mmap(-1, SEQUENTIAL_BYTES)  # O_DIRECT requires page alignment
    os.read(go, 1)
    did = _ReaderResult()
    did.begin_s = did.end_s = monotonic()
    try:
        for piece in cycle(pieces) if task.method == "direct" else pieces:
            was_s = did.end_s
            try:
                got = opened.read(piece, buffer)
            except FileNotFoundError:
                got = 0
            did.end_s = monotonic()
            if got:
                did.read_bytes += got
                did.reads += 1
                if len(did.times_us) < _MOST_TIMES:
                    did.times_us.append(round((did.end_s - was_s) * 1e6, 1))
            else:
                did.lost += 1
            if did.end_s - did.begin_s >= task.seconds or did.read_bytes >= task.most_bytes:
                break
    except OSError as failed:
        path = task.files[piece.file].path.encode("utf-8", "replace").decode()  # as JSON can represent it
        did.error = f"reading {path}: {failed.strerror or failed}"
    write_all(pipe, msgspec.json.encode(did))


class OpenFiles:
    """Opens files for reading as a data loader does: a small one again for each read, a large one once."""

    def __init__(self, files: Sequence[DataFile], method: ReadMethod, pattern: ReadPattern) -> None:
        self._files = files
        self._flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if method == "direct" else 0)
        self._advice = os.POSIX_FADV_SEQUENTIAL if pattern == "sequential" else os.POSIX_FADV_RANDOM
        self._buffered = method != "direct"
        self._kept: OrderedDict[int, int] = OrderedDict()

    def read(self, piece: Piece, buffer: mmap.mmap) -> int:
        """Read one piece into the buffer; returns the number of bytes. Raises OSError."""
        file = self._files[piece.file]
        keep = file.size_bytes >= _KEPT_OPEN_BYTES
        descriptor = self._kept[piece.file] if piece.file in self._kept else self._open(file.path)
        if keep and piece.file not in self._kept:
            self._kept[piece.file] = descriptor
            if len(self._kept) > _MOST_OPEN:
                os.close(self._kept.popitem(last=False)[1])
        try:
            # O_DIRECT requires whole pages; at the end of a file it returns what is left
            length = -(-piece.length // mmap.PAGESIZE) * mmap.PAGESIZE
            return os.preadv(descriptor, [memoryview(buffer)[:length]], piece.offset)
        finally:
            if not keep:
                os.close(descriptor)

    def _open(self, path: str) -> int:
        descriptor = os.open(path, self._flags)
        if self._buffered:
            os.posix_fadvise(descriptor, 0, 0, self._advice)
        return descriptor
