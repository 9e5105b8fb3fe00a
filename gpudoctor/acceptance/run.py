"""What the steps of one acceptance run share: its options, its processes, the facts, and the raw data it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import msgspec

from gpudoctor.acceptance.children import EndedChild, OnLine, environment, run_child
from gpudoctor.acceptance.result import Item
from gpudoctor.errors import UserError
from gpudoctor.facts.model.node import Node, from_json
from gpudoctor.process.own_program import own_gpudoctor, own_python
from gpudoctor.report.model import Report


class AcceptanceRequest(msgspec.Struct, frozen=True):
    """What was asked for. `burn_s` None: 3 minutes on GPUs, 10 s on CPU ranks."""

    backend: str = "auto"
    ranks: int | None = None
    burn_s: float | None = None
    repeats: int = 60
    redact: bool = True
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


class Step(msgspec.Struct, frozen=True):
    """One part of the run; its function gives statements as it comes to them. `deadline_s` bounds it as a whole."""

    name: str
    title: str
    deadline_s: float
    function: Callable[[AcceptanceRun], Iterator[Item]]


class StepError(UserError):
    """A step could not go on, in words: it did not agree."""


class AcceptanceRun:
    """One acceptance run. `folder` is private and empty, `mark` is in the environment of every child.

    `node` are the facts as they were before the first step; `raw` is what goes into the archive
    beside them, by file name; `reports` the reports of the checks that ran, by step.
    """

    def __init__(self, request: AcceptanceRequest, folder: Path, mark: str, show: Callable[[str], None]) -> None:
        self.request = request
        self.folder = folder
        self.mark = mark
        self.node = Node()
        self.raw: dict[str, bytes] = {}
        self.reports: dict[str, Report] = {}
        self._show = show
        self._step = ""
        self._ends_s = monotonic()

    @property
    def simulated(self) -> bool:
        return self.node.source.kind == "simulated"

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks are CPU ranks by what was asked for, or because there is no real GPU."""
        return self.request.backend == "gloo" or self.simulated

    @property
    def environ(self) -> dict[str, str]:
        return environment(self.mark, self.folder)

    def begin(self, step: Step) -> None:
        """From here on children belong to this step, and end with it."""
        self._step = step.name
        self.allow(step.deadline_s)
        self._show(f"{step.name}: {step.title}")

    def allow(self, seconds: float) -> None:
        """All children from here on have so long together."""
        self._ends_s = monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(1.0, self._ends_s - monotonic())

    def child(self, argv: list[str], on_line: OnLine | None = None) -> EndedChild:
        """A program of this step, to its end or the step's. Raise StepError if it cannot be started."""
        try:
            return run_child(
                argv, deadline_s=self.left_s, environ=self.environ, cwd=self.folder, on_line=on_line or self._tell
            )
        except OSError as error:
            raise StepError(f"{argv[0]} cannot be started: {error.strerror or error}") from None

    def module(self, module: str, *arguments: str) -> bytes:
        """What a module of ours writes to stdout. Raise StepError if it fails."""
        done = self.child(own_python(module, "main", *arguments))
        if done.code != 0:
            raise StepError(f"{module} {done.words}")
        return done.stdout

    def facts(self) -> Node:
        """The facts as `gpudoctor facts` reads them now. Raise StepError."""
        done = self.child([*own_gpudoctor(), "facts"])
        try:
            return from_json(done.stdout)
        except (msgspec.MsgspecError, ValueError):
            raise StepError(f"gpudoctor facts {done.words}") from None

    def check(self, *arguments: str, name: str | None = None, on_line: OnLine | None = None) -> Report:
        """The report of `gpudoctor check`, kept under `name` (default: the step's). Raise StepError for none.

        On every exit there is exactly one report, whose exit code is the process's; all else is a defect.
        """
        words = ["check", *arguments, "--backend", self.request.backend, "--json", "--progress", "--include-facts"]
        if self.on_cpu and self.request.ranks:
            words += ["--ranks", str(self.request.ranks)]
        done = self.child([*own_gpudoctor(), *words], on_line)
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
