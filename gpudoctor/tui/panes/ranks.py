"""The Ranks tab: what each rank did in the last train, and how fast the collectives were."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from gpudoctor.tui.messages import RunWanted
from gpudoctor.tui.panes.pane import DrawnPane, put
from gpudoctor.tui.panes.rank_figures import figures, next_operation, operations


class RanksPane(DrawnPane):
    """Figures of the report's ranks as text that scrolls; drawn anew only with another report or another width."""

    DEFAULT_CSS = """
    RanksPane { height: 1fr; }
    RanksPane #ranks-figures { height: auto; width: 1fr; }
    """
    BINDINGS = [Binding("m", "next_operation", "Operation"), Binding("r", "measure", "Measure ranks")]

    def __init__(self) -> None:
        super().__init__()
        self._operation: str | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True):
            yield Static(id="ranks-figures", markup=False)

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def action_next_operation(self) -> None:
        """Plot the next of the collectives that were measured."""
        self._operation = next_operation(operations(self._state.report), self._operation)
        self._draw()

    def action_measure(self) -> None:
        self.post_message(RunWanted(("collective", "train"), "standard"))

    def _draw(self) -> None:
        if not self.size.width:
            return
        names = operations(self._state.report)
        op = self._operation if self._operation in names else None
        # two columns are the scroll bar's
        drawn = figures(self._state.report, self._state.node, op, self.size.width - 2, self.app.no_color)
        put(self.query_one("#ranks-figures", Static), drawn)
