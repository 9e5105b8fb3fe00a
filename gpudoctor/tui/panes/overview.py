"""The Overview tab: GPUs, history of the selected one, checks, the finding, host and job."""

from __future__ import annotations

from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.widget import Widget

from gpudoctor.checks.core.finding import PROBLEMS
from gpudoctor.tui.panes.check_list import CheckChosen, CheckList
from gpudoctor.tui.panes.finding_text import FindingPane
from gpudoctor.tui.panes.gpu_rows import GpuRows
from gpudoctor.tui.panes.history import HistoryGraph
from gpudoctor.tui.panes.host_text import HostLines
from gpudoctor.tui.panes.pane import GpuChosen, Pane
from gpudoctor.tui.state import State

# The layout of the overview: pure arithmetic, for 80x24 and larger and 1 to 16 GPUs.
#
# When space is short the parts give way in this order: the history (it needs 6 lines), the finding and the
# check list beside it (both are also on the Checks tab), the job's line, at last GPU rows (they scroll). If there is a
# problem, the finding stays: GPU rows give way before it, and on a narrow screen the check list.
# Extra space goes first to the history, in multiples of its height up to four, then to the finding.

NARROW_BELOW, STACKED_BELOW = 110, 64
HISTORY_LINES = 6
_GPUS_LEAST = 4  # the headings and three rows
_FINDING_LEAST, _FINDING_TIGHT, _FINDING_GOOD, _FINDING_MOST = 5, 8, 10, 18
_CHECKS_LEAST, _CHECKS_MOST = 42, 72


@dataclass(frozen=True)
class Rectangle:
    """A rectangle in cells; height 0 means hidden."""

    x: int = 0
    y: int = 0
    width: int = 0
    height: int = 0


@dataclass(frozen=True)
class Arrangement:
    """The places of the parts; `narrow`: rules instead of boxes, checks and finding below, side by side if they fit."""

    narrow: bool
    gpus: Rectangle
    checks: Rectangle
    history: Rectangle
    finding: Rectangle
    host: Rectangle


def arrange(width: int, height: int, gpus: int, *, problem: bool = False) -> Arrangement:
    """The layout of `width` x `height` cells for a number of GPUs; `problem`: whether a check has found one."""
    narrow = width < NARROW_BELOW
    edges = 1 if narrow else 2  # a rule above, or a box around
    table = max(gpus, 1) + 1 + edges
    host = (2 if height >= table + 2 + edges else 1) + edges
    table = min(table, max(height - host, 2 + edges))
    left = height - table - host
    history = (_narrow_history if narrow else _wide_history)(left)
    finding = left - history
    alone = problem and finding < _FINDING_TIGHT - 1
    if alone:
        host, history = 1 + edges, 0
        finding = max(min(_FINDING_TIGHT, height - host - _GPUS_LEAST - edges), 0)
        table = height - host - finding
    if finding < _FINDING_LEAST - narrow:
        table, finding = table + finding, 0
    y = table + history
    list_width = min(_CHECKS_MOST, max(_CHECKS_LEAST, width * 35 // 100))
    side = width if narrow else width - list_width
    checks = Rectangle(side, 0, list_width, y)
    below = Rectangle(0, y, width, finding)
    if narrow:
        list_width = min(40, width // 2)
        if alone or not finding:
            checks = Rectangle()
        elif width < STACKED_BELOW:  # side by side, neither could be read
            checks = Rectangle(0, y, width, finding * 2 // 5)
            below = Rectangle(0, y + checks.height, width, finding - checks.height)
        else:
            checks = Rectangle(0, y, list_width, finding)
            below = Rectangle(list_width, y, width - list_width, finding)
    return Arrangement(
        narrow=narrow,
        gpus=Rectangle(0, 0, side, table),
        history=Rectangle(0, table, side, history),
        checks=checks,
        finding=below,
        host=Rectangle(0, y + finding, width, host),
    )


def _narrow_history(left: int) -> int:
    return HISTORY_LINES + 1 if left >= HISTORY_LINES + _FINDING_GOOD else 0


def _wide_history(left: int) -> int:
    finding = max(_FINDING_GOOD, min(_FINDING_MOST, left * 2 // 5))
    taller = min(4, (left - finding - 2) // HISTORY_LINES)
    # an alert or a time slider takes a line or two and must not hide the history
    if taller < 1 and left >= HISTORY_LINES + 2 + _FINDING_TIGHT:
        taller = 1
    return taller * HISTORY_LINES + 2 if taller > 0 else 0


class OverviewPane(Pane):
    """Selecting a GPU shows its worst finding; selecting a check selects the GPU that it names."""

    DEFAULT_CSS = """
    OverviewPane {
        layout: vertical;
        overflow: hidden;
    }
    OverviewPane > * {
        position: absolute;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._gpus = GpuRows(id="gpus", classes="panel")
        self._checks = CheckList(id="check-list", classes="panel")
        self._history = HistoryGraph(id="history", classes="panel")
        self._finding = FindingPane(id="finding", classes="panel")
        self._host = HostLines(id="host", classes="panel")
        self._arranged: Arrangement | None = None
        self._state: State | None = None
        self._check_id: str | None = None
        self._check_gpu: int | None = None

    def compose(self) -> ComposeResult:
        self._gpus.border_title = "GPUs"
        self._checks.border_title = "Checks"
        self._finding.border_title = "Finding"
        self._host.border_title = "Host and job"
        yield from (self._gpus, self._checks, self._history, self._finding, self._host)

    def show(self, state: State) -> None:
        self._state = state
        if not self._arrange(state):
            return
        self._gpus.show(state)
        self._checks.show(state)  # hidden too: it chooses the check of the finding
        if self._finding.display:
            self._show_finding(state)
        self._host.show(state)
        if self._history.display:
            self._history.show(state)

    def on_resize(self) -> None:
        if self._state is not None:
            self.show(self._state)

    def choose_gpu(self, state: State) -> None:
        """The selected GPU changed: show its worst finding, or that it has none."""
        found = state.findings_of(state.selected_gpu)
        if found:
            self.turn_to(found[0][0], state.selected_gpu)
        else:
            self._check_id, self._check_gpu = None, state.selected_gpu

    def turn_to(self, check_id: str, gpu: int | None) -> None:
        """Show the findings of this check, those of this GPU (NVML index) first."""
        self._check_id, self._check_gpu = check_id, gpu
        self._checks.choose(check_id)

    @on(CheckChosen)
    def _check_chosen(self, message: CheckChosen) -> None:
        message.stop()
        cursor = self._checks.chosen
        if cursor is not None and cursor.check_id != message.check_id:
            return  # the cursor has moved since
        self._check_id, self._check_gpu = message.check_id, message.gpu
        if message.gpu is not None and self._state is not None and message.gpu != self._state.selected_gpu:
            self.post_message(GpuChosen(message.gpu))
        elif self._state is not None and self._finding.display:
            self._show_finding(self._state)

    def _show_finding(self, state: State) -> None:
        if self._check_id is not None or state.report is not None:
            self._finding.show_finding(state, self._check_id, self._check_gpu)

    def _arrange(self, state: State) -> bool:
        """Place every part; False while the pane has no size."""
        width, height = self.size
        if not width or not height:
            return False
        count = len(state.node.gpus) if state.node is not None else 0
        checks = state.report.checks if state.report is not None else ()
        problem = any(check.status in PROBLEMS for check in checks)
        arranged = arrange(width, height, count, problem=problem)
        if arranged != self._arranged:
            self._arranged = arranged
            self.set_class(arranged.narrow, "-narrow")
            _put(self._gpus, arranged.gpus)
            _put(self._checks, arranged.checks)
            _put(self._history, arranged.history)
            _put(self._finding, arranged.finding)
            _put(self._host, arranged.host)
        return True


def _put(widget: Widget, rectangle: Rectangle) -> None:
    widget.display = rectangle.height > 0
    widget.styles.offset = (rectangle.x, rectangle.y)
    widget.styles.width = rectangle.width
    widget.styles.height = rectangle.height
