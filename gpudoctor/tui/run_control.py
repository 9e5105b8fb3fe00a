"""Runs, cancels, compares and saves checks on behalf of the App, with the questions that need an answer first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from textual.app import App

from gpudoctor.checks.core.registry import Level
from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_imports
from gpudoctor.report.model import Report
from gpudoctor.report.output_files import write_file
from gpudoctor.report.progress import ProgressLine
from gpudoctor.report.saved_report import load_report
from gpudoctor.report.two_reports import joined
from gpudoctor.text.grouped import grouped
from gpudoctor.tui.check_runner import Checker, puts_load, users_of_gpus
from gpudoctor.tui.state import FinishedRun, LogLine, Running, State

with lazy_imports():
    from gpudoctor.tui import screens


class RunControl:
    """Carries out the user's requests about checks; calls `on_change` after each change of the state."""

    def __init__(self, app: App[Any], state: State, checker: Checker, on_change: Callable[[], None]) -> None:
        self._app = app
        self._state = state
        self._checker = checker
        self._on_change = on_change

    def want(self, only: Sequence[str], level: Level, *, quiet: bool = False) -> None:
        """Run these checks (empty: all); ask first if that would load GPUs that are in use.

        `quiet`: the screen starts the run, not the user. A refusal shows no message, and a read-only
        view may then run level quick, which only judges facts.
        """
        only = tuple(only)
        if quiet and (self._state.running is not None or (self._state.read_only and level != "quick")):
            return
        if not quiet and self._read_only("no check can be started"):
            return
        if self._checker.busy or self._state.running is not None:
            self._say("a check runs already: c cancels it")
            return
        users = users_of_gpus(self._state) if self._checker.loads_gpus and puts_load(only, level) else ()
        if not users:
            self._start(only, level, force=False)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._start(only, level, force=True)

        lines = ["The GPUs are in use:", *users, "", "Load beside it slows both down, and its figures say little."]
        self._app.push_screen(screens.ConfirmScreen("Load GPUs that are in use?", lines, "Run all the same"), answered)

    def choose_level(self) -> None:
        """Prompt for a level and run all checks at it."""

        def answered(level: Level | None) -> None:
            if level is not None:
                self.want((), level)

        if not self._read_only("no check can be started"):
            screen = screens.LevelScreen(self._state.level, loads_gpus=self._checker.loads_gpus)
            self._app.push_screen(screen, answered)

    def cancel(self) -> None:
        """Ask the run to end with a partial report."""
        if self._state.running is None:
            self._say("no check runs")
            return
        self._state.running.progress = "cancelled: waiting for what it has learnt"
        self._checker.cancel()
        self._on_change()

    def close(self) -> None:
        """End the run without waiting."""
        self._checker.close()

    def page(self, check_id: str) -> None:
        """Show the documentation page of a check."""
        self._app.push_screen(screens.PageScreen(check_id))

    def save(self) -> None:
        """Prompt for a path and save the newest report."""
        if self._state.report is None:
            self._say("there is no report yet")
            return
        if self._read_only("nothing is written"):
            return

        def saved(path: str | None) -> None:
            if path is not None:
                self._note(f"report saved to {path}")

        self._app.push_screen(screens.SaveScreen(self._state.report), saved)

    def export(self, svg: str) -> None:
        """Write a picture of the screen into the working directory."""
        if self._read_only("nothing is written"):
            return
        name = time.strftime("gpudoctor-%Y%m%d-%H%M%S")
        names = chain([name], (f"{name}-{number}" for number in count(2)))  # several pictures in one second
        path = next(path for each in names if not (path := Path.cwd() / f"{each}.svg").exists())
        try:
            write_file(path, svg)
        except UserError as error:
            self._app.notify(str(error), severity="error", markup=False)
            return
        self._note(f"screen exported to {path}")

    def compare(self) -> None:
        """Prompt for a saved report and compare with it from now on; an empty answer ends the comparison."""
        if self._read_only("no file is read"):
            return

        def answered(path: str | None) -> None:
            if path is None:
                return
            try:
                # Path.expanduser raises for a user who is not known
                self._state.base = load_report(os.path.expanduser(path), Report) if path else None  # noqa: PTH111
            except UserError as error:
                self._say(str(error))
                return
            self._note(f"compared with {path}" if path else "compared with the run before")

        title = "Compare with a saved report (JSON of gpudoctor check --json); empty: with the run before"
        self._app.push_screen(screens.PathScreen(title), answered)

    def _start(self, arguments: tuple[str, ...], level: Level, *, force: bool) -> None:
        if self._checker.busy:  # another run was started while the question was open
            self._say("a check runs already: c cancels it")
            return
        self._state.running = Running(arguments, level, time.time())
        # as a worker of the App it is cancelled, and the child killed, when the App ends
        self._app.run_worker(self._run(arguments, level, force=force), group="check", exit_on_error=False)
        self._on_change()

    async def _run(self, arguments: tuple[str, ...], level: Level, *, force: bool) -> None:
        phases: dict[int, str] = {}

        def heard(line: ProgressLine) -> None:
            running = self._state.running
            if running is None or running.progress.startswith("cancelled"):
                return
            if line.rank is None:
                running.progress = line.progress
            else:
                phases[line.rank] = line.progress
                step = f"step {line.step} of {line.steps}: " if line.step else ""
                running.progress = f"{step}{summary(phases)}"
            running.ends_s = None if line.left_s is None else time.time() + line.left_s
            self._on_change()

        try:
            run = await self._checker.run(arguments, level, force=force, on_progress=heard)
        except UserError as error:
            run = FinishedRun(time.time(), arguments, level, None, str(error))
        finally:
            self._state.running = None
        self._take(run)

    def _take(self, run: FinishedRun) -> None:
        state = self._state
        if run.report is not None and run.only and state.report is not None:
            state.report = joined(state.report, run.report)
        elif run.report is not None:
            state.report = run.report
        state.finish(run)
        state.log.append(LogLine(time.time(), "run", run_words(run)))
        if run.error is not None:
            self._say(run.error)
        self._on_change()

    def _read_only(self, what: str) -> bool:
        """Whether this view may not do it, which the user is then told."""
        if self._state.read_only:
            self._say(f"this view is read-only: {what} from it")
        return self._state.read_only

    def _note(self, text: str) -> None:
        self._state.log.append(LogLine(time.time(), "note", text))
        self._app.notify(text, markup=False)
        self._on_change()

    def _say(self, text: str) -> None:
        self._app.notify(text, severity="warning", markup=False)


def summary(phases: dict[int, str]) -> str:
    """What the ranks are doing, smallest group first.

    >>> summary({0: "join"}), summary({0: "join", 1: "join"})
    ('rank 0: join', 'join (2 ranks)')
    >>> summary({0: "all_reduce of 4 MiB", 1: "all_reduce of 1 MiB", 2: "all_reduce of 4 MiB"})
    'rank 1: all_reduce of 1 MiB; 2 ranks: all_reduce of 4 MiB'
    """
    ranks = grouped((phase, rank) for rank, phase in sorted(phases.items()))
    if len(ranks) == 1 and len(phases) > 1:
        return f"{next(iter(ranks))} ({len(phases)} ranks)"
    few_first = sorted(ranks.items(), key=lambda group: len(group[1]))
    return "; ".join(
        f"rank {who[0]}: {phase}" if len(who) == 1 else f"{len(who)} ranks: {phase}" for phase, who in few_first[:3]
    )


def run_words(run: FinishedRun) -> str:
    """One line on a finished run: its checks, its level and the verdict."""
    what = ", ".join(run.only) or "all checks"
    if run.report is None:
        return f"{what}, level {run.level}: no verdict: {run.error}"
    interrupted = "interrupted, partial: " if run.report.run.interrupted else ""
    return f"{what}, level {run.level}: {interrupted}{run.report.reason}"
