"""The progress of each rank, which ranks keep the others waiting, and what the error text of one means.

The texts are those of cudaGetErrorString, NCCL's "Last error" and torch, which stay the same for
years. An unknown text stays an `error` in the library's own words, and is never a pass.
`crash`: a healthy GPU does not do this to work that runs everywhere else. `refused`: the GPU accepts no new
process; whether it is configured so or broken follows from its compute mode and its users.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from gpudoctor.facts.model.measurements import ProbeProblem
from gpudoctor.probes.runner.messages import RankFailure, Where
from gpudoctor.process.ending import signal_name

Kind = Literal["crash", "error", "out-of-memory", "refused"]


class Meaning(msgspec.Struct, frozen=True):
    """The kind of an error, and in plain words what happened."""

    kind: Kind
    plain: str


# (text, source, kind, meaning). A number is that of cudaError_t in the CUDA Runtime API ("Data types used by CUDA
# Runtime"). The first match counts: texts that name the hardware come before those that any failure may cause.
_WORDS: tuple[tuple[str, str, Kind, str], ...] = (
    ("ecc error", "214", "crash", "the GPU met an error in its memory that ECC cannot correct"),
    ("nvlink error", "220", "crash", "an NVLink of the GPU failed in the middle of the work"),
    ("or a hardware error", "226", "crash", "the GPU contained an error of its hardware or of a peer's"),
    ("gpu is lost", "NVML 15", "crash", "the GPU is lost"),
    ("fallen off the bus", "NVML, Xid 79", "crash", "the GPU fell off the bus"),
    ("requires reset", "NVML 16", "crash", "the GPU must be reset"),
    ("hardware stack error", "714", "crash", "the GPU lost its call stack"),
    ("illegal instruction", "715", "crash", "the GPU met an instruction that does not exist"),
    ("invalid program counter", "718", "crash", "the GPU left its program"),
    ("misaligned address", "716", "crash", "the GPU computed an address that cannot be"),
    ("illegal memory access", "700", "crash", "the GPU reached for memory that is not its own"),
    ("unspecified launch failure", "719", "crash", "the GPU stopped in the middle of the work"),
    (
        *("system not yet initialized", "802", "crash"),
        "CUDA waits for the system: does nvidia-fabricmanager run, and, with confidential computing, is the GPU ready?",
    ),
    ("busy or unavailable", "46", "refused", "the GPU does not accept a process"),
    ("device-side assert", "710", "error", "a kernel of torch refused its input"),
    ("duplicate gpu detected", "NCCL", "error", "two ranks were given the same GPU"),
    ("launch timed out", "702", "error", "the GPU drives a screen, and the time limit for that ended the work"),
    ("no kernel image", "209", "error", "this torch has no code for the GPU"),
    ("driver version is insufficient", "35", "error", "the driver is too old for the CUDA of this torch"),
    ("nvidia driver on your system is too old", "torch", "error", "the driver is too old for the CUDA of this torch"),
    ("forward compatibility was attempted", "804", "error", "the CUDA compatibility package does not work on this GPU"),
    ("unsupported display driver", "803", "error", "kernel module and library of the driver do not fit"),
    ("no cuda-capable device", "100", "error", "CUDA shows this process no GPU"),
    ("no cuda gpus are available", "torch", "error", "CUDA shows this process no GPU"),
    ("invalid device ordinal", "101", "error", "CUDA shows this process fewer GPUs than it was given"),
    ("initialization error", "3", "error", "CUDA does not start in this process"),
    ("driver initialization failed", "torch", "error", "CUDA does not start in this process"),
    ("mps client", "805, 807, 808", "error", "the MPS server does not serve this process"),
    ("mps server", "806", "error", "the MPS server does not serve this process"),
    ("os call failed", "304", "error", "the system refused the driver a call: a container without /dev/nvidia-uvm?"),
    ("shared memory segment /dev/shm", "NCCL", "error", "NCCL got no room in /dev/shm"),
    ("defaultcpuallocator", "torch", "out-of-memory", "the host has no memory left"),
    ("cannot allocate memory", "errno 12", "out-of-memory", "the host has no memory left"),
    ("alloc_failed", "CUBLAS_STATUS_, CUDNN_STATUS_", "out-of-memory", "the GPU has no memory left"),
    ("out of memory", "2", "out-of-memory", ""),
)


def meaning_of(text: str) -> Meaning | None:
    """The meaning of an error text; None if it is unknown, which does not mean harmless."""
    whole = text.lower()
    return next((Meaning(kind, plain) for words, _, kind, plain in _WORDS if words in whole), None)


def telling_line(lines: tuple[str, ...]) -> tuple[str, Meaning] | None:
    """The first line of a process's output that explains why it ended, with its meaning."""
    for line in lines:
        if "NCCL WARN" not in line and (meaning := meaning_of(line)) is not None:
            return line.strip(), meaning
    return None


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

    def level(self, rank: int, moves: int) -> None:
        """Set the count to the value that all ranks agreed on, because one of them may have skipped some moves."""
        self._cells[rank * _FIELDS] = moves

    def begin_step(self, rank: int, step: int) -> None:
        """Set the step of the phase, counted from 1; 0: the phase has no steps."""
        self._cells[rank * _FIELDS + 1] = step

    def close(self) -> None:
        self._cells.release()
        self._memory.close()


# what other processes and the kernel send; neither a GPU nor its driver ends a program by these
_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class RankState(msgspec.Struct):
    """What the parent knows about one rank. `status`: exit code or minus the signal number; None while it runs."""

    number: int
    probe: Where = "launch"
    phase: str = "start"
    progress: BoardEntry = BoardEntry()
    failure: RankFailure | None = None
    left: bool = False
    stopped: bool = False
    status: int | None = None
    output: tuple[str, ...] = ()

    @property
    def doing(self) -> str:
        return f"{self.phase} {self.progress.step}" if self.progress.step else self.phase

    @property
    def died(self) -> bool:
        return self.status is not None and not self.left and self.failure is None


def timeout_problem(states: Sequence[RankState], limit_s: float) -> ProbeProblem:
    """The problem after a timeout: the ranks with the fewest moves hang, those that are further wait for them."""
    unfinished = [state for state in states if not state.left and state.status is None]
    if not unfinished:
        return ProbeProblem("launch", "timeout", f"the ranks did not end within {limit_s:g} s")
    halted = [state for state in unfinished if state.stopped]
    if halted:  # by a signal from outside: no fault of the node
        names = rank_list(s.number for s in halted)
        text = f"{names} {'is' if len(halted) == 1 else 'are'} stopped (SIGSTOP) in {halted[0].doing}"
        waiting = tuple(s.number for s in unfinished if not s.stopped)
        return ProbeProblem(halted[0].probe, "error", text, halted[0].number, halted[0].doing, waiting)
    least = min(state.progress.moves for state in unfinished)
    behind = [state for state in unfinished if state.progress.moves == least]
    waiting = tuple(state.number for state in unfinished if state.progress.moves > least)
    first = behind[0]
    if not waiting and len(behind) > 1 and first.phase != "import torch":
        text = f"no rank left {first.doing} within {limit_s:g} s: all of them are in it"
        return ProbeProblem(first.probe, "timeout", text, phase=first.doing, output=first.output)
    if first.phase == "import torch":
        text = f"importing torch did not end within {limit_s:g} s in {rank_list(s.number for s in behind)}"
        return ProbeProblem("launch", "timeout", text, phase=first.phase, output=first.output)
    text = f"{rank_list(s.number for s in behind)} did not leave {first.doing} within {limit_s:g} s"
    if waiting:
        verb, whom = "wait" if len(waiting) > 1 else "waits", "it" if len(behind) == 1 else "them"
        text += f"; {rank_list(waiting)} {verb} for {whom}"
    return ProbeProblem(first.probe, "timeout", text, first.number, first.doing, waiting, first.output)


def slow_problem(states: Sequence[RankState], limit_s: float) -> ProbeProblem:
    """The problem if time ran out but no rank hangs: it names no rank, since a busy machine looks the same."""
    unfinished = [state for state in states if not state.left and state.status is None] or list(states)
    last = min(unfinished, key=lambda state: state.progress.moves)
    text = f"not done within {limit_s:g} s: no rank hangs, but they are slow (in {last.doing}); a busy machine?"
    return ProbeProblem(last.probe, "error", text, phase=last.doing, output=last.output)


def failure_problems(states: Sequence[RankState]) -> tuple[ProbeProblem, ...]:
    """The failure that explains the others, and each GPU that refused its rank; empty if no rank failed.

    A rank that died, or that failed by itself, breaks everyone's connections: the others then fail
    too, while waiting. They are listed as `waiting`, not as faults. Refusals are reported per GPU: one GPU
    may be in exclusive mode and the next one broken, and a refusal must not hide anything worse.
    """
    dead = [state for state in states if state.died]
    by_itself = [state for state in states if state.failure is not None and not state.failure.blocked]
    while_waiting = [state for state in states if state.failure is not None and state.failure.blocked]
    culprits = dead or by_itself or while_waiting
    refused = [state for state in culprits if state.failure is not None and state.failure.kind == "refused"]
    waiting = tuple(s.number for s in states if s not in culprits and not s.left)
    others = [state for state in culprits if state not in refused]
    return tuple(_failed(group, waiting) for group in (others, *([state] for state in refused)) if group)


def _failed(culprits: Sequence[RankState], waiting: tuple[int, ...]) -> ProbeProblem:
    first = culprits[0]
    if first.failure is None:
        text = f"{rank_list(s.number for s in culprits)} died in {first.doing}: {_how_it_ended(first)}"
        # a rank that exits by itself before any probe could not start, which says nothing about a GPU
        kept = -(first.status or 0) in _SENT_BY_OTHERS or (first.probe == "launch" and (first.status or 0) >= 0)
        # NCCL's watchdog aborts a process whose GPU had an error, and prints that error
        known = telling_line(first.output) if first.status == -signal.SIGABRT else None
        kind = "error" if kept else known[1].kind if known else "crash"
        return ProbeProblem(first.probe, kind, text, first.number, first.doing, waiting, first.output)
    text = f"{rank_list(s.number for s in culprits)} failed in {first.doing}: {first.failure.text}"
    return ProbeProblem(first.probe, first.failure.kind, text, first.number, first.doing, waiting, first.output)


def rank_list(numbers: Iterable[int]) -> str:
    """Rank numbers as text: rank 1; ranks 0, 2, 3."""
    listed = sorted(numbers)
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(str(n) for n in listed)}"


def _how_it_ended(state: RankState) -> str:
    status = state.status or 0
    if status >= 0:
        last = f" ({state.output[-1]})" if state.output else ""
        return f"exit code {status}{last}"
    name = signal_name(-status)
    if status == -signal.SIGKILL:
        return f"ended by {name}, as the kernel does when memory runs out"
    known = telling_line(state.output) if status == -signal.SIGABRT else None
    if known is None:
        return f"ended by {name}"
    line, meaning = known
    return f"ended by {name}: {meaning.plain} ({line})" if meaning.plain else f"ended by {name} ({line})"
