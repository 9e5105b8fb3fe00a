"""A small App around the Checks tab, with the same handlers as the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from textual.pilot import Pilot

import gpudoctor.tui
from gpudoctor.checks.core.registry import Level, registry, select
from gpudoctor.facts.simulated.load import apply_faults, load_node
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Report
from gpudoctor.tui.check_runner import Checker
from gpudoctor.tui.panes.checks import ChecksPane
from gpudoctor.tui.panes.pane import PageWanted, RunWanted
from gpudoctor.tui.run_control import RunControl
from gpudoctor.tui.state import State
from tests.tui.pane_app import PaneApp


@cache
def report_of(node: str = "hgx-h100-8", *faults: str, words: tuple[str, ...] = (), level: Level = "quick") -> Report:
    """What `gpudoctor check --node NODE --fault ...` reports, without a process of its own."""
    facts = load_node(node, {})
    facts = apply_faults(facts, list(faults)) if faults else facts
    checks = select(registry(), words)
    return judge(facts, None, Question(checks=checks, level=level), include_facts=True)


NARROW = report_of("hgx-h100-8", "pcie-width-x8@5")


class ChecksApp(PaneApp):
    """Shows a state in the Checks tab; `asked` are the runs that panes wanted, which start only with a checker."""

    CSS_PATH = Path(gpudoctor.tui.__file__).parent / "app.tcss"
    BINDINGS = [("s", "save", "Save")]

    def __init__(self, state: State, checker: Checker | None = None) -> None:
        super().__init__(ChecksPane(), state)
        self.starts = checker is not None
        self.pages: list[str] = []
        self.checks_control = RunControl(self, state, checker or Checker([], []), self.changed)

    def changed(self) -> None:
        self.pane.show(self.state)

    def on_run_wanted(self, message: RunWanted) -> None:
        if self.starts:  # the handler of PaneApp, which Textual calls too, keeps what was asked for
            self.checks_control.want(message.only, message.level)

    def on_page_wanted(self, message: PageWanted) -> None:
        self.pages.append(message.check_id)
        self.checks_control.page(message.check_id)

    def action_run_all(self) -> None:
        self.post_message(RunWanted((), self.state.level))

    def action_level(self) -> None:
        self.checks_control.choose_level()

    def action_cancel(self) -> None:
        self.checks_control.cancel()

    def action_compare(self) -> None:
        self.checks_control.compare()

    def action_save(self) -> None:
        self.checks_control.save()


@asynccontextmanager
async def in_app(
    state: State | None = None, size: tuple[int, int] = (120, 36), checker: Checker | None = None
) -> AsyncIterator[tuple[ChecksApp, Pilot[None]]]:
    """The Checks tab on a screen, unless told otherwise with the report on a node with one narrow link."""
    app = ChecksApp(state or State(report=NARROW), checker)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot
