"""The Checks tab: all checks, their findings and pages, and the runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Button, Markdown, Static

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.registry import Level
from gpudoctor.report.model import Report
from gpudoctor.report.two_reports import Difference, differences
from gpudoctor.text.output import printable
from gpudoctor.text.units import counted, duration_text
from gpudoctor.tui.labels import clock
from gpudoctor.tui.panes.check_list import CheckChosen, CheckList
from gpudoctor.tui.panes.finding_text import FindingPane
from gpudoctor.tui.panes.pane import Pane, RunWanted, put
from gpudoctor.tui.screens import LEVEL_COSTS, page_of
from gpudoctor.tui.state import FinishedRun, Running, State

_STACKED_BELOW = 70
# a page has about twenty widgets: do not build one for each check that a held key passes
_PAGE_DELAY_S = 0.15
_PAGE_LINES_MIN = 28
_BUTTON_BLANKS = 3  # beside its label
_LEFT_OUT_FIRST = ("domain", "base")
RUNS_SHOWN = 20
DIFFERENCES_SHOWN = 30


class ChecksPane(Pane):
    """Check list left; controls, findings, page and runs right. The App binds the keys R, l and c."""

    DEFAULT_CSS = """
    ChecksPane {
        layout: horizontal;
        & > CheckList { width: 2fr; min-width: 36; max-width: 60; }
        & > .right { width: 3fr; }
        &.-narrow { layout: vertical; }
        &.-narrow > CheckList { width: 100%; max-width: 100%; height: 1fr; }
        &.-narrow > .right { width: 100%; height: 2fr; }
        .controls { height: 1; }
        Button { min-width: 0; padding: 0; margin-right: 1; }
        .running { height: auto; max-height: 2; display: none; color: $text-primary; text-style: bold; }
        .running.-shown { display: block; }
        FindingPane { height: 2fr; min-height: 4; }
        .page { height: 2fr; }
        .page Markdown { margin: 0; padding: 0 1; }
        .history { height: 1fr; min-height: 3; }
        .history Static { height: auto; width: 100%; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("d", "run_domain", "Domain"), ("b", "app.compare", "Compare")]

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._check_id: str | None = None
        self._gpu: int | None = None
        self._list = CheckList(classes="panel")
        self._finding = FindingPane(classes="panel")
        self._page = Markdown(open_links=False)
        self._page_box = VerticalScroll(self._page, classes="panel page")
        self._running_line = Static(classes="running")
        self._history = Static()
        self._history_box = VerticalScroll(self._history, classes="panel history")
        self._level_button = Button(Content(""), id="level", action="app.level", compact=True)
        self._cancel_button = Button(Content("Cancel c"), id="cancel", action="app.cancel", compact=True)
        self._buttons = (
            Button(Content("All R"), id="all", action="app.run_all", compact=True),
            Button(Content("Check r"), id="one", compact=True),
            Button(Content("Domain d"), id="domain", compact=True),
            self._level_button,
            Button(Content("Compare b"), id="base", action="app.compare", compact=True),
        )
        self._page_shown: str | None = None
        self._page_timer: Timer | None = None
        self._level_shown: Level | None = None
        self._history_shown: object = None

    def compose(self) -> ComposeResult:
        yield self._list
        with Vertical(classes="right"):
            with Horizontal(classes="controls"):
                yield self._cancel_button
                yield from self._buttons
            yield self._running_line
            yield self._finding
            yield self._page_box
            yield self._history_box

    def on_mount(self) -> None:
        self._list.border_title = Content("Checks")
        self._finding.border_title = Content("Findings")
        self._page_box.border_title = Content("Page")
        self._history_box.border_title = Content("Runs")
        self._show_level("quick")

    def on_resize(self, event: events.Resize) -> None:
        stacked = event.size.width < _STACKED_BELOW
        self.set_class(stacked, "-narrow")
        # on a low screen findings and runs need the lines; e opens the page
        self._page_box.display = event.size.height >= _PAGE_LINES_MIN and not stacked
        self.call_after_refresh(self._show_buttons)

    def show(self, state: State) -> None:
        self._state = state
        self._list.show(state)
        self._finding.show_finding(state, self._check_id, self._gpu)
        self._show_level(state.level)
        self._show_running(state)
        key = (len(state.runs), state.runs[-1:], id(state.base), id(state.report))
        if key != self._history_shown:
            self._history_shown = key
            put(self._history, history_content(state))

    def _show_running(self, state: State) -> None:
        text = running_words(state.running, time.time())
        self._running_line.set_class(bool(text), "-shown")
        if text:
            self._running_line.update(Content(text))
        self._show_buttons()

    def _show_buttons(self) -> None:
        """Those that may be pressed now and fit whole, the chosen level before the last ones; all of them have keys."""
        self._cancel_button.display = self._state.running is not None
        offered = self._state.running is None and not self._state.read_only
        room = self.query_one(".controls").size.width
        for button in sorted(self._buttons, key=lambda button: button.id in _LEFT_OUT_FIRST):
            room -= cell_len(str(button.label)) + _BUTTON_BLANKS
            button.display = offered and room >= -1  # the last blank may be cut

    @on(CheckChosen)
    def _chosen(self, event: CheckChosen) -> None:
        event.stop()
        self._check_id, self._gpu = event.check_id, event.gpu
        self._finding.show_finding(self._state, event.check_id, event.gpu)
        self._finding.border_title = Content(printable(event.check_id))
        if self._page_timer is not None:
            self._page_timer.stop()
        self._page_timer = self.set_timer(_PAGE_DELAY_S, self._show_page)

    async def _show_page(self) -> None:
        if self._check_id is None or self._check_id == self._page_shown:
            return
        self._page_shown = self._check_id
        await self._page.update(page_of(self._check_id))
        self._page_box.scroll_home(animate=False)

    @on(Button.Pressed, "#one")
    def _one_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self._post(self._list.one_wanted())

    @on(Button.Pressed, "#domain")
    def _domain_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_run_domain()

    def action_run_domain(self) -> None:
        self._post(self._list.domain_wanted())

    def _post(self, expected: RunWanted | None) -> None:
        # posted here and not by the list: a message does not bubble above the widget that caused it
        if expected is not None:
            self.post_message(expected)

    def _show_level(self, level: Level) -> None:
        if level != self._level_shown:
            self._level_shown = level
            self._level_button.label = Content(f"Level {level} l")
            self._level_button.tooltip = Content(LEVEL_COSTS[level])


def running_words(running: Running | None, now_s: float) -> str:
    """One line on the current run: its checks, elapsed time, usual time left, and progress."""
    if running is None:
        return ""
    what = ", ".join(running.only) or "all checks"
    left_s = None if running.ends_s is None else running.ends_s - now_s
    left = f", about {duration_text(left_s)} left" if left_s is not None and left_s > 0 else ""
    doing = f"  {running.progress}" if running.progress else ""
    return printable(
        f"RUN {what}, level {running.level}: {duration_text(max(0.0, now_s - running.since_s))}{left}{doing}"
    )


def history_content(state: State) -> Content:
    """The changes of the newest run, then the runs since the start, newest first."""
    lines = list(_changes(state))
    lines.append(Content.styled("Runs since the start", "head"))
    if not state.runs:
        lines.append(Content("none yet"))
    lines += [_run_line(run) for run in reversed(state.runs[-RUNS_SHOWN:])]
    return Content("\n").join(lines)


def compared(state: State) -> tuple[str, Report, Report] | None:
    """(name of the old report, old, new): the saved report and the newest, else the two newest runs; None without two.

    Of the runs, the old one is the newest earlier run that judged any of the same checks.
    """
    if state.base is not None and state.report is not None:
        who = state.base.host.name or state.base.run.source.name
        return f"the saved report of {who}, {state.base.run.started_at}", state.base, state.report
    reports = [(run.at_s, run.report) for run in state.runs if run.report is not None]
    if len(reports) < 2:
        return None
    _, new = reports[-1]
    ids = {check.id for check in new.checks}
    for at_s, old in reversed(reports[:-1]):
        if any(check.id in ids for check in old.checks):
            return f"the run of {clock(at_s)}", old, new
    return None


def _changes(state: State) -> Iterator[Content]:
    pair = compared(state)
    if pair is None:
        return
    against, old, new = pair
    found = differences(old, new)
    yield Content.styled(printable(f"Against {against}"), "head")
    if not found:
        yield Content("nothing changed")
    for difference in found[:DIFFERENCES_SHOWN]:
        yield _difference_line(difference)
    if len(found) > DIFFERENCES_SHOWN:
        yield Content(f"and {len(found) - DIFFERENCES_SHOWN} more")
    yield Content("")


def _difference_line(difference: Difference) -> Content:
    tone = Status.PASS if difference.kind == "gone" else difference.after or "quiet"
    return Content.assemble((f"{difference.kind}: ", tone), printable(difference.text))


def _run_line(run: FinishedRun) -> Content:
    what = printable(", ".join(run.only) or "all")
    head = f"{clock(run.at_s)}  {run.level:<8}  {what:<12}  "
    if run.report is None:
        return Content.assemble(head, ("no verdict ", "unknown"), printable(run.error or ""))
    report = run.report
    word = report.verdict.upper() if report.verdict == "fail" else report.verdict
    faults = counted(len(report.faults), "fault")
    partial = "  interrupted: partial" if report.run.interrupted else ""
    on = ""
    if report.measurements.launch is not None and report.measurements.launch.backend == "gloo":
        on = f"  {report.measurements.launch.world_size} CPU ranks"
    return Content.assemble(
        head,
        (f"{word:<8}", Status(report.verdict)),
        f" {faults}  {report.run.duration_s:.1f} s{on}{partial}",
    )
