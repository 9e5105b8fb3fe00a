"""The reading of many files, shared by as many processes as there are CPUs."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, TypeVar

from gpudoctor.process.ending import ENDING_SIGNALS, kill_all, leave
from gpudoctor.process.forked import ForkedProcess

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 50
# below, one process is done before others have begun
FEWEST_FILES = 400
MOST_PROCESSES = 8
_END_LIMIT_S = 10.0  # a disk that hangs lets nobody go


def in_processes(files: Sequence[T], work: Callable[[list[T]], R]) -> Iterator[R]:
    """What `work` makes of the files, chunk by chunk and in their order; `work` must not depend on other chunks.

    Forked processes do it where there are many files. Each has its chunks by number, so that nothing is sent to it;
    it ends when nobody reads its pipe, and is ended when the caller stops. What a dead one has not done is done here.
    """
    chunks = [list(files[at : at + CHUNK]) for at in range(0, len(files), CHUNK)]
    count = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
    if len(files) < FEWEST_FILES or count < 2:
        yield from map(work, chunks)
        return
    workers: list[tuple[ForkedProcess, BinaryIO]] = []
    try:
        for number in range(count):
            workers.append(_start(chunks[number::count], work, [pipe for _, pipe in workers]))
        for number, chunk in enumerate(chunks):
            answer: list[R] | None = _answer(workers[number % count][1])
            yield work(chunk) if answer is None else answer[0]
    finally:
        for _, pipe in workers:
            pipe.close()
        kill_all([process for process, _ in workers], _END_LIMIT_S, group=False)


def _start(
    chunks: list[list[T]], work: Callable[[list[T]], R], others: list[BinaryIO]
) -> tuple[ForkedProcess, BinaryIO]:
    reading, writing = os.pipe()
    with suppress(OSError):  # no more than a user may have: then it waits for its reader more often
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)

    def answer_all() -> None:
        try:
            for number in ENDING_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.close(reading)
            for pipe in others:
                pipe.close()
            with os.fdopen(writing, "wb") as pipe:
                for chunk in chunks:
                    pickle.dump([work(chunk)], pipe, pickle.HIGHEST_PROTOCOL)
                    pipe.flush()
        finally:
            leave()  # without words: the parent does what is missing

    process = ForkedProcess(answer_all)
    os.close(writing)
    return process, os.fdopen(reading, "rb")


def _answer(pipe: BinaryIO) -> list[R] | None:
    """The next answer; None where the process has ended."""
    try:
        answer: list[R] = pickle.load(pipe)  # written by our own child
    except (EOFError, pickle.UnpicklingError):
        return None
    return answer
