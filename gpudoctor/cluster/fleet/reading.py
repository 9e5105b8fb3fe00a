"""Reads any number of documents into a record of each report and a reason for each other document."""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import BinaryIO

import msgspec

from gpudoctor.cluster.fleet.files import Document, FoundFiles, Listed, documents_of, listed, stdin_documents
from gpudoctor.cluster.fleet.nodes import JobRecord, job_of
from gpudoctor.cluster.fleet.records import BrokenError, ForeignError, Recorder, ReportRecord
from gpudoctor.cluster.fleet.runs import run_report_of
from gpudoctor.process.ending import ENDING_SIGNALS, kill_all, leave
from gpudoctor.process.forked import ForkedProcess
from gpudoctor.run.report import RunReport

CHUNK = 50
# with fewer files, one process is done before others have started
FEWEST_FILES = 400
MOST_PROCESSES = 8
_END_LIMIT_S = 10.0  # a process that waits for a hung disk cannot be killed


def in_processes(files: Sequence[Listed], work: Callable[[list[Listed]], list[Outcome]]) -> Iterator[list[Outcome]]:
    """The results of `work` on chunks of the files, in order; `work` must not depend on other chunks.

    Many files are shared among forked processes, one per CPU. Chunks are assigned by number, so that nothing has to be
    sent to a process. A process ends when its pipe has no reader, and is killed when the caller stops. If one dies, its
    remaining chunks are done here.
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
            answer = _answer(workers[number % count][1])
            yield work(chunk) if answer is None else answer
    finally:
        for _, pipe in workers:
            pipe.close()
        kill_all([process for process, _ in workers], _END_LIMIT_S, group=False)


def _start(
    chunks: list[list[Listed]], work: Callable[[list[Listed]], list[Outcome]], others: list[BinaryIO]
) -> tuple[ForkedProcess, BinaryIO]:
    reading, writing = os.pipe()
    with suppress(OSError):  # the user's limit on pipe memory is reached: the writer then waits more often
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
                    pickle.dump(work(chunk), pipe, pickle.HIGHEST_PROTOCOL)
                    pipe.flush()
        finally:
            leave()  # without a message: the parent does the missing chunks

    process = ForkedProcess(answer_all)
    os.close(writing)
    return process, os.fdopen(reading, "rb")


def _answer(pipe: BinaryIO) -> list[Outcome] | None:
    """The next result of a process; None if the process has ended."""
    try:
        answer: list[Outcome] = pickle.load(pipe)  # written by our own child
    except (EOFError, pickle.UnpicklingError):
        return None
    return answer


class Refused(msgspec.Struct, frozen=True):
    """A document that is not used, and why."""

    place: str
    why: str


class UnreadReport(Refused, frozen=True):
    """A document that should have been a report: its node is not known."""


class Foreign(Refused, frozen=True):
    """A document that is not a report: no node is missed with it."""


Outcome = ReportRecord | JobRecord | RunReport | UnreadReport | Foreign


class Gathered(msgspec.Struct):
    """Everything that was read. `duplicates` are further copies of a run.

    `interrupted` is the number of the signal that ended the reading.
    """

    found: FoundFiles
    records: list[ReportRecord]
    broken: list[Refused]
    foreign: list[Refused]
    duplicates: list[Refused]
    jobs: list[JobRecord] = msgspec.field(default_factory=list)
    runs: list[RunReport] = msgspec.field(default_factory=list)
    interrupted: int | None = None


class ReportReader:
    """Reads sets of reports; values that the sets have in common are stored once."""

    def __init__(self) -> None:
        self._recorder = Recorder()

    def read(
        self, sources: list[str], stdin: BinaryIO | None, note: Callable[[ReportRecord | Refused], None] | None = None
    ) -> Iterator[Gathered]:
        """Yield the same, growing `Gathered` after each document, so that the caller may stop at any time.

        `note` is called with each record and each unreadable report; a source that is absent is one.
        """
        gathered = Gathered(FoundFiles(), [], [], [], [])
        runs: dict[str, ReportRecord] = {}
        yield gathered
        for outcome in self._outcomes(sources, stdin, gathered.found):
            retained = _kept(outcome, gathered, runs)
            if note is not None and not isinstance(retained, (Foreign, JobRecord, RunReport)):
                note(retained)
            yield gathered

    def _outcomes(self, sources: list[str], stdin: BinaryIO | None, found: FoundFiles) -> Iterator[Outcome]:
        for source in sources:
            if source == "-":
                yield from (self._outcome(document) for document in stdin_documents(stdin))
                continue
            files: list[Listed] = []
            for each in listed(source, found):
                if isinstance(each, Document):
                    yield self._outcome(each)
                else:
                    files.append(each)
            for outcomes in in_processes(files, self._of_files):
                for outcome in outcomes:
                    yield self._recorder.shared(outcome) if isinstance(outcome, ReportRecord) else outcome

    def _of_files(self, files: list[Listed]) -> list[Outcome]:
        return [self._outcome(document) for file in files for document in documents_of(file)]

    def _outcome(self, document: Document) -> Outcome:
        try:
            return self._recorder.record(document)
        except BrokenError as error:
            return UnreadReport(document.place, str(error))
        except ForeignError as error:
            job = job_of(document.data, document.place, document.modified)
            if job is not None:
                return job
            try:
                run = run_report_of(document.data)
            except BrokenError as broken:
                return UnreadReport(document.place, str(broken))
            return Foreign(document.place, str(error)) if run is None else run


def _kept(outcome: Outcome, gathered: Gathered, runs: dict[str, ReportRecord]) -> Outcome:
    if isinstance(outcome, ReportRecord):
        first = runs.setdefault(outcome.run_id, outcome) if outcome.run_id else outcome
        if first is not outcome and _says_the_same(first, outcome):
            gathered.duplicates.append(Refused(outcome.place, f"the same run as {first.place}"))
            return outcome
        if first is not outcome:
            why = f"the id of its run is that of {first.place}, and its content is another: which one is true?"
            outcome = UnreadReport(outcome.place, why)
    match outcome:
        case ReportRecord():
            gathered.records.append(outcome)
        case JobRecord():
            gathered.jobs.append(outcome)
        case RunReport():
            gathered.runs.append(outcome)
        case UnreadReport():
            gathered.broken.append(outcome)
        case Foreign():
            gathered.foreign.append(outcome)
    return outcome


def _says_the_same(first: ReportRecord, second: ReportRecord) -> bool:
    if not (first.named or second.named):
        return first.verdict == second.verdict  # their names come from the files
    key = attrgetter("name", "verdict", "started_s", "boards")
    return bool(key(first) == key(second))


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable garbage collection: records have no reference cycles, and the search for them takes most of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
