"""Starts the ranks, reads their messages, and always ends them.

This process never imports torch and never touches CUDA: a hanging driver must not hang gpudoctor.
The ranks are children of the starter (rank_starter.py), which reaps them. Every process has a
parent-death signal, and a guardian removes the run's directory however this process ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import msgspec

from gpudoctor.facts.model.measurements import PROBES, Measurements, ProbeProblem
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.path_status import ask_paths
from gpudoctor.probes.runner.board import ProgressBoard
from gpudoctor.probes.runner.local_workers import LocalWorkers
from gpudoctor.probes.runner.messages import RankJob, RankMessage, message_decoder
from gpudoctor.probes.runner.plan import Limits, ProbePlan, checked
from gpudoctor.probes.runner.rank_starter_client import contexts_of, end, order_for, start, teardown_s
from gpudoctor.probes.runner.run_collector import RunCollector
from gpudoctor.process.pipes import LineReader, ready
from gpudoctor.process.spawn import Child
from gpudoctor.process.temporary_folder import temporary_folder

__all__ = ["ProbePlan", "run_probes"]

_FAILURE_GRACE_S = 1.0  # after one rank failed: time for the others to notice and report it
_TURN_S = 0.5
_SPARE_DESCRIPTORS = 4  # needed to remove a directory
_STOPPED_S = 5.0  # a scheduler that suspends a job stops and continues its processes one after another
_SAY_EVERY_S = 10.0  # between two calls of on_wait


OnMessage = Callable[[int, RankMessage], None]


class _CannotStartError(Exception):
    """The machine lacks something the ranks need to start: disk space, processes, file descriptors."""


def run_probes(
    plan: ProbePlan,
    *,
    deadline_s: float,
    probe_deadline_s: float,
    progress: Callable[[str], None] | None = None,
    on_interrupt: Callable[[Measurements], None] | None = None,
    workers: LocalWorkers | None = None,
    on_message: OnMessage | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> Measurements:
    """Run the plan's probes in rank processes and return the measurements.

    Whatever goes wrong in a rank becomes a problem in the Measurements, never an exception.
    On any exception in this process (KeyboardInterrupt, one raised by a signal handler) the ranks are
    ended and the private directory is removed before it propagates.

    `deadline_s` bounds the run from the rendezvous of the ranks on, `probe_deadline_s` each probe. The import of
    torch and the rendezvous have separate limits (plan.py): a cold disk or sleeping GPUs may take minutes.
    Ending CPU ranks that ignore SIGTERM may take 2 s more; GPU ranks first get 3 s to let their GPU finish, and a
    minute and more if the driver is slow to release them (rank_starter_client.py).
    `progress` is called with each phase that begins, `on_wait` about every 10 s with what the run is waiting for.
    `workers`: processes that a launch engine started on this node; they host all ranks but the first.
    `on_interrupt` receives the measurements so far if an exception ends the run.
    `on_message` receives each message of a rank when it arrives (-1 is the starter).
    Raises UserError if the plan is invalid.
    """
    injections = checked(plan)
    try:
        if workers is not None and workers.missing:
            who = f"{'processes' if len(workers.missing) > 1 else 'process'} {', '.join(map(str, workers.missing))}"
            raise _CannotStartError(f"{workers.engine} started {workers.ranks} processes here, and {who} did not come")
        limits = Limits(plan, deadline_s, probe_deadline_s)
        with _private_folder() as (folder, life):
            job = RankJob(
                **msgspec.structs.asdict(plan),
                folder=str(folder),
                group_timeout_s=limits.whole_s + 10.0,
                injections=injections,
            )
            with _needed():
                board = ProgressBoard(folder / "board", plan.ranks)
            collector = RunCollector(plan, folder, board, progress)
            with closing(board), _started(job, life, workers) as children:
                try:
                    _watch(children, collector, limits, on_message, on_wait)
                except BaseException:
                    if on_interrupt is not None:
                        on_interrupt(collector.measurements())
                    raise
                collector.conclude()
            collector.note_stuck(children.stuck)
            return collector.measurements()
    except _CannotStartError as error:
        return _nothing_started(plan, str(error))


@contextmanager
def _private_folder() -> Iterator[tuple[Path, int]]:
    """The run's private directory, and the read end of a pipe that reaches EOF when this process or the run ends."""
    with ExitStack() as life, ExitStack() as spares:
        with _needed():
            # Closed before the removal, which needs descriptors even if the run has used up all of them. Those
            # below 3 fill gaps that the caller left: a pipe there would be taken for standard input or output.
            above = 0
            while above < _SPARE_DESCRIPTORS:
                descriptor = os.open(os.devnull, os.O_RDONLY)
                spares.callback(os.close, descriptor)
                above += descriptor > 2
            reader, writer = os.pipe()
            for end in (reader, writer):
                life.callback(os.close, end)
            _refuse_silent_tmpdir()
            folder = life.enter_context(temporary_folder("gpudoctor-"))
            _require_locks(folder)
        yield folder, reader


def _refuse_silent_tmpdir() -> None:
    """Raise OSError if TMPDIR is on a mount that does not answer: creating a directory there would never return."""
    path = os.environ.get("TMPDIR") or "/tmp"
    [status] = ask_paths([path])
    if isinstance(status, Missing):
        raise OSError(f"TMPDIR, {path}, {status.reason}")


def _require_locks(folder: Path) -> None:
    """Raise OSError if files in this folder cannot be locked: torch's FileStore, where the ranks meet, needs flock."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        text = f"TMPDIR, {folder.parent}, has no file locks ({error.strerror}): set it to a folder on a local disk"
        raise OSError(text) from error
    finally:
        os.close(descriptor)


@contextmanager
def _needed() -> Iterator[None]:
    """Around everything that must succeed before any rank can run."""
    try:
        yield
    except OSError as error:
        raise _CannotStartError(str(error)) from error


class _Children:
    """The starter, the engine's other processes, and the read ends of their pipes and every rank's.

    `stuck`, valid after `end`: a process could not be ended.
    """

    def __init__(self, process: Child, workers: LocalWorkers | None, pipes: dict[int, int], contexts: int) -> None:
        self.process = process
        self._contexts = contexts
        self.stuck = False
        self._workers = workers
        self._has_ranks = False
        self._pipes = {pipe: (source, LineReader(pipe)) for source, pipe in pipes.items()}

    @property
    def talking(self) -> bool:
        return bool(self._pipes)

    def lines(self, wait_s: float) -> Iterator[tuple[int, bytes | None]]:
        """(rank, line) as they arrive within `wait_s`; rank -1 - n: the starter of rank n; line None: EOF."""
        for pipe in ready(self._pipes, wait_s):
            source, reader = self._pipes[pipe]
            lines = reader.read()
            if lines is None:
                del self._pipes[pipe]
                os.close(pipe)
                yield source, None
                continue
            self._has_ranks |= bool(lines) and source < 0
            for line in lines:
                yield source, line

    def end(self) -> None:
        try:
            if self._workers is not None:
                self._workers.ask_to_end()
            self.stuck = end(self.process, has_ranks=self._has_ranks, contexts=self._contexts)
            if self._workers is not None:
                self.stuck |= not self._workers.end_ranks(teardown_s(self._contexts))
        finally:
            for pipe in self._pipes:
                os.close(pipe)
            self._pipes.clear()


@contextmanager
def _started(job: RankJob, life: int, workers: LocalWorkers | None) -> Iterator[_Children]:
    """Start the children; all of them have been ended when the block is left, however that happens."""
    everyone = list(range(job.ranks))
    own, of_workers = (everyone, []) if workers is None else (everyone[:1], everyone[1:])
    # CUDA must not be in use when a process forks, which only a CPU run guarantees. Under an engine each starter
    # has one rank, for which forking gains nothing.
    method = "fork-server" if job.backend == "gloo" and workers is None else "fresh-interpreters"
    readers: dict[int, int] = {}
    writers: dict[int, int] = {}
    with ExitStack() as undo:
        try:
            with _needed(), (Path(job.folder) / "starter.stderr").open("wb") as output:
                for source in (-1, *(-1 - rank for rank in of_workers), *everyone):
                    readers[source], writers[source] = os.pipe()
                    undo.callback(os.close, readers[source])
                ends = [writers[rank] for rank in own]
                process = start(order_for(job, own, method), life, writers[-1], ends, output)
                if workers is not None:
                    for rank in of_workers:
                        workers.order(rank, order_for(job, [rank], method), life, writers[-1 - rank], writers[rank])
        finally:
            for writer in writers.values():
                os.close(writer)
        undo.pop_all()
    children = _Children(process, workers, readers, contexts_of(job))
    try:
        yield children
    finally:
        children.end()


def _watch(
    children: _Children,
    collector: RunCollector,
    limits: Limits,
    on_message: OnMessage | None,
    on_wait: Callable[[str], None] | None,
) -> None:
    """Collect the children's messages until they have ended, failed, or run out of time."""
    decoder = message_decoder()
    give_up_at: float | None = None
    looked_at = time.monotonic()
    say_at = looked_at + _SAY_EVERY_S
    stopped_s = 0.0
    while children.talking:
        now = time.monotonic()
        # of a pause in which this process was stopped itself, one turn counts
        stopped_s = stopped_s + min(now - looked_at, _TURN_S) if collector.starter_is_stopped(children.process) else 0.0
        looked_at = now
        if stopped_s >= _STOPPED_S:
            return
        limit, limit_s = limits.at(now, collector.stage, collector.running)
        if give_up_at is None and collector.broken:
            give_up_at = now + _FAILURE_GRACE_S
        until = limit if give_up_at is None else give_up_at
        if now >= until:
            if give_up_at is None:
                collector.time_out(limit_s)
            return
        if now >= say_at:
            say_at = now + _SAY_EVERY_S
            if on_wait is not None:
                on_wait(collector.waited_for())
        # in short turns: a signal that arrives just before the wait does not interrupt it
        for rank, line in children.lines(min(until - now, _TURN_S)):
            if line is None:
                collector.pipe_ended(rank)
            else:
                try:
                    message = decoder.decode(line)
                except msgspec.DecodeError:
                    collector.garbled(rank)
                    continue
                collector.take(rank, message)
                if on_message is not None:
                    on_message(rank, message)


def _nothing_started(plan: ProbePlan, why: str) -> Measurements:
    text = f"no rank could be started: {why}"
    not_run: dict[str, Missing] = {probe: Missing("not asked for") for probe in PROBES if probe not in plan.probes}
    for name in ("torch", *plan.probes):
        not_run[name] = Missing(text, "failed")
    problem = ProbeProblem("launch", "error", text, phase="start")
    return Measurements(problems=(problem,), not_run=not_run, injected=plan.inject)
