"""Reads each path in a separate process under a deadline, and collects its answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import monotonic

import msgspec

from gpudoctor.facts.model.measured_hardware import StorageRead
from gpudoctor.facts.model.missing import NOT_READ, Missing
from gpudoctor.probes.storage.read_child import ReadAnswer, ReadOrder
from gpudoctor.process.die_with_parent import dependent_python
from gpudoctor.process.ending import ending_words, kill_all
from gpudoctor.process.pipes import TURN_S, LineReader, pipe_with_child
from gpudoctor.process.spawn import Child

# a measurement takes 1 s, and up to 8 s more for one read of a slow source; a file is written in 4 s and a sync
SILENCE_S = 15.0
# six measurements, and the work before and after them
WHOLE_S = 60.0
_KILL_GRACE_S = 1.0

Progress = Callable[[str], None] | None


def read_paths(
    reads: Sequence[StorageRead],
    readers: tuple[int, ...],
    progress: Progress = None,
    *,
    silence_s: float = SILENCE_S,
    seconds: float = 1.0,
) -> tuple[StorageRead, ...]:
    """Fill in the figures, one path after another, since concurrent reads would compete. Never raises for a path.

    `readers`: numbers of concurrent readers, one measurement each. `silence_s`: how long a path may report nothing.
    """
    return tuple(_read_path(read, readers, progress, silence_s, seconds) for read in reads)


def _read_path(
    read: StorageRead,
    readers: tuple[int, ...],
    progress: Progress,
    silence_s: float,
    seconds: float,
) -> StorageRead:
    path_hex = os.fsencode(read.path).hex()
    read = msgspec.structs.replace(read, path=read.path.encode("utf-8", "replace").decode())
    order = ReadOrder(read, path_hex, readers, seconds)
    try:
        with pipe_with_child("writes") as (own, other):
            argv = dependent_python(
                "gpudoctor.probes.storage.read_child", "begin", str(other), msgspec.json.encode(order).decode()
            )
            process = Child(argv, pass_fds=[other])
    except OSError as error:
        return _failed(read, f"no process could be started to read: {error.strerror or error}")
    try:
        return _collect_answers(read, LineReader(own), process, progress, silence_s)
    finally:
        # ends its readers too, which are in its process group; a process blocked by a dead mount is abandoned
        kill_all([process], _KILL_GRACE_S)
        os.close(own)


def _collect_answers(
    read: StorageRead, pipe: LineReader, process: Child, progress: Progress, silence_s: float
) -> StorageRead:
    doing, give_up_s = "start", monotonic() + WHOLE_S
    silent_s = monotonic() + silence_s
    while (left_s := min(give_up_s, silent_s) - monotonic()) > 0:
        lines = pipe.lines(min(left_s, TURN_S))
        if lines is None:
            break
        for line in lines:
            answer = msgspec.json.decode(line, type=ReadAnswer)
            silent_s = monotonic() + silence_s
            if progress is not None and answer.doing != doing:
                progress(f"read {read.path}: {answer.doing}")
            doing, read = answer.doing, answer.read
    else:
        return _failed(read, f"did not come back from {doing!r} within {silence_s:g} s")
    if read.failure is None and read.cold == NOT_READ:
        return _failed(read, f"ended in {doing!r}: {ending_words(process.ends_within(_KILL_GRACE_S))}")
    return read


def _failed(read: StorageRead, why: str) -> StorageRead:
    return msgspec.structs.replace(read, failure=Missing(why, "failed"))
