"""What the steps of an acceptance run share: options, child processes, facts, reports, raw data, and their results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Literal

import msgspec

from acceptance.children import EndedChild, OnLine, environment, run_child
from gpudoctor import __version__
from gpudoctor.errors import UserError
from gpudoctor.facts.model.node import Node, from_json
from gpudoctor.process.own_program import own_gpudoctor, own_python
from gpudoctor.report.model import Report

Outcome = Literal["agreed", "did not agree", "could not look"]
Verdict = Literal["confirmed", "refuted", "not measured"]
_WORST_FIRST: tuple[Outcome, ...] = ("did not agree", "agreed", "could not look")


class Assumption(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one of the ten measurements says about constants of gpudoctor, each as `module.NAME = value`.

    `number`: which of the ten. `measured` and `assumed` have units; both are empty if it was not measured, and `why`
    is the reason.
    """

    number: int
    result: Verdict
    measured: str
    assumed: str
    constants: tuple[str, ...]
    why: str = ""


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One statement of a step, one line of text."""

    outcome: Outcome
    text: str
    assumption: Assumption | None = None


def agreed(text: str) -> Item:
    """Two sources were compared and agreed."""
    return Item("agreed", text)


def differs(text: str) -> Item:
    """Two sources were compared and differed, or one of them failed; the text names both."""
    return Item("did not agree", text)


def could_not(text: str) -> Item:
    """Nothing was compared; the text gives the reason and what would be needed."""
    return Item("could not look", text)


def found_none(what: str, found: Sequence[str], none: str) -> Item:
    """`none` as agreement if `found` is empty, else a difference with the first five of what should not be there."""
    return differs(f"{what}: {', '.join(found[:5])}") if found else agreed(none)


class StepResult(msgspec.Struct, frozen=True):
    """One step. It agreed if nothing in it disagreed and at least one thing was compared."""

    step: str
    title: str
    outcome: Outcome
    seconds: float
    items: tuple[Item, ...]


def result_of(step: str, title: str, seconds: float, items: tuple[Item, ...]) -> StepResult:
    """The result of a step: the worst outcome of its items; "did not agree" if it has none."""
    items = items or (differs("the step ended without a word: a defect of gpudoctor"),)
    outcome = min((item.outcome for item in items), key=_WORST_FIRST.index)
    return StepResult(step, title, outcome, round(seconds, 1), items)


class Acceptance(msgspec.Struct, frozen=True):
    """The run as a document, acceptance.json in its archive. `interrupted` names the signal that ended it early."""

    node: str
    simulated: bool
    backend: str
    started_at: str
    duration_s: float
    exit_code: int
    steps: tuple[StepResult, ...]
    interrupted: str | None = None
    schema: Literal["gpudoctor.acceptance/1"] = "gpudoctor.acceptance/1"
    version: str = __version__

    def count(self, outcome: Outcome) -> int:
        return sum(step.outcome == outcome for step in self.steps)


class AcceptanceRequest(msgspec.Struct, frozen=True):
    """The options. `burn_s` None: 3 minutes on GPUs, 10 s on CPU ranks."""

    backend: str = "auto"
    ranks: int | None = None
    burn_s: float | None = None
    repeats: int = 60
    redact: bool = True
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


class Step(msgspec.Struct, frozen=True):
    """One part of the run. `function` yields statements; `deadline_s` bounds all its child processes together.

    `measures`: which of the ten measurements it takes (assumptions.py).
    """

    name: str
    title: str
    deadline_s: float
    function: Callable[[AcceptanceRun], Iterator[Item]]
    measures: tuple[int, ...] = ()


class StepError(UserError):
    """A step cannot continue and counts as "did not agree"; the text gives the reason."""


def shm_entries() -> frozenset[str]:
    """The names of this user's entries in /dev/shm."""
    try:
        entries = [entry for entry in os.scandir("/dev/shm") if entry.stat(follow_symlinks=False).st_uid == os.getuid()]
    except OSError:
        return frozenset()
    return frozenset(entry.name for entry in entries)


class AcceptanceRun:
    """One acceptance run. `folder` is private and empty; `mark` is in the environment of every child.

    `node`: the facts from before the first step; `shm_before`: what this user had in /dev/shm. `raw`: files for the
    archive, by name. `reports`: the reports of the checks, by step or given name.
    """

    def __init__(self, request: AcceptanceRequest, folder: Path, mark: str, show: Callable[[str], None]) -> None:
        self.request = request
        self.folder = folder
        self.mark = mark
        self.node = Node()
        self.raw: dict[str, bytes] = {}
        self.reports: dict[str, Report] = {}
        self.shm_before = shm_entries()
        self._show = show
        self._step = ""
        self._ends_s = monotonic()

    @property
    def simulated(self) -> bool:
        return self.node.source.kind == "simulated"

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks are CPU ranks: by option, or because the node is simulated."""
        return self.request.backend == "gloo" or self.simulated

    @property
    def environ(self) -> dict[str, str]:
        return environment(self.mark, self.folder)

    def begin(self, step: Step) -> None:
        """Start a step: the following children share its deadline."""
        self._step = step.name
        self.allow(step.deadline_s)
        self._show(f"{step.name}: {step.title}")

    def allow(self, seconds: float) -> None:
        """Let all following children together run for this long."""
        self._ends_s = monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(1.0, self._ends_s - monotonic())

    def child(
        self, argv: list[str], on_line: OnLine | None = None, settings: Mapping[str, str] | None = None
    ) -> EndedChild:
        """Run a program, with these variables too, until it ends or the step's deadline.

        Raise StepError if it cannot be started.
        """
        environ = {**self.environ, **(settings or {})}
        try:
            return run_child(
                argv, deadline_s=self.left_s, environ=environ, cwd=self.folder, on_line=on_line or self._tell
            )
        except OSError as error:
            raise StepError(f"{argv[0]} cannot be started: {error.strerror or error}") from None

    def module(self, module: str, *arguments: str) -> bytes:
        """The stdout of `main` of one of our modules, run as a child. Raise StepError if it fails."""
        done = self.child(own_python(module, "main", *arguments))
        if done.code != 0:
            raise StepError(f"{module} {done.words}")
        return done.stdout

    def facts(self) -> Node:
        """The facts as `gpudoctor facts` reads them now. Raise StepError if it fails."""
        done = self.child([*own_gpudoctor(), "facts"])
        try:
            return from_json(done.stdout)
        except (msgspec.MsgspecError, ValueError):
            raise StepError(f"gpudoctor facts {done.words}") from None

    def check(self, *arguments: str, name: str | None = None, settings: Mapping[str, str] | None = None) -> Report:
        """The report of `gpudoctor check`, also stored in `reports` as `name` (default: the step's name).

        `settings`: variables that it gets too.

        Raise StepError if there is no report or its exit code is not that of the process: gpudoctor promises
        exactly one report, with the same exit code, on every exit.
        """
        words = ["check", *arguments, "--backend", self.request.backend, "--json", "--progress", "--include-facts"]
        if self.on_cpu and self.request.ranks:
            words += ["--ranks", str(self.request.ranks)]
        done = self.child([*own_gpudoctor(), *words], settings=settings)
        if done.late:
            raise StepError(f"gpudoctor check {' '.join(arguments)} {done.words}")
        try:
            report = msgspec.json.decode(done.stdout, type=Report)
        except (msgspec.MsgspecError, ValueError) as error:
            raise StepError(f"gpudoctor check gave no report ({done.words}): {error}") from None
        if report.error is not None:
            raise StepError(f"gpudoctor check could not do its work: {report.error}")
        if report.exit_code != done.code:
            raise StepError(f"gpudoctor check ended with {done.code}, its report says {report.exit_code}")
        self.reports[name or self._step] = report
        return report

    def _tell(self, line: str) -> None:
        try:
            words = msgspec.json.decode(line, type=_Progress).progress
        except (msgspec.MsgspecError, ValueError):
            return
        self._show(f"{self._step}: {words}")


class _Progress(msgspec.Struct):
    progress: str
