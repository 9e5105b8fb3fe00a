"""The Links tab: how GPUs are connected, and how fast copies between them were."""

from __future__ import annotations

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gpudoctor.facts.model.node import Node
from gpudoctor.report.model import Report
from gpudoctor.text.output import printable
from gpudoctor.tui.labels import following
from gpudoctor.tui.panes.link_details import details, pair_line, rank_of_gpu
from gpudoctor.tui.panes.link_matrices import METRICS, Drawn, Metric, best_metric, draw
from gpudoctor.tui.panes.pane import DrawnPane, GpuChosen, RunWanted, put
from gpudoctor.tui.widgets.matrix import Matrix

_BESIDE_WIDTH = 56  # the details need this width to go beside the matrix

_LIVE = ("pcie_generation", "pcie_width")


class LinksPane(DrawnPane):
    """The matrix with a cursor, a line on the pair under the cursor, and the other links of GPUs and host.

    The PCIe path is that of the GPU in the cursor's row; moving to another row posts GpuChosen.
    """

    DEFAULT_CSS = """
    LinksPane { layout: vertical; height: 1fr; }
    LinksPane #links-title { height: auto; }
    LinksPane #links-pair { height: auto; max-height: 2; }
    LinksPane #links-body { height: 1fr; }
    LinksPane #links-details { height: auto; width: 1fr; margin: 1 0 0 0; }
    LinksPane.-beside #links-body { layout: horizontal; }
    LinksPane.-beside #links-details { margin: 0 0 0 2; }
    """
    BINDINGS = [Binding("m", "next_metric", "Metric"), Binding("r", "measure", "Measure links")]
    _metric: Metric | None = None  # None: the best available
    _drawn: Drawn | None = None
    _drawn_from: tuple[Metric, Node | None, Report | None] = ("topology", None, None)
    _details_from: tuple[object, ...] = ()
    _seen_gpu: int | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="links-title", markup=False)
        with VerticalScroll(id="links-body", can_focus=False):
            yield Matrix()
            yield Static(id="links-details", markup=False)
        yield Static(id="links-pair", markup=False)

    def on_resize(self, event: events.Resize) -> None:
        if self._drawn is not None:
            self._draw()

    def action_next_metric(self) -> None:
        """Show the next matrix, measured or not."""
        self._metric = following(METRICS, self._shown_metric)
        self._draw()

    def action_measure(self) -> None:
        self.post_message(RunWanted(("link", "collective"), "full"))

    @on(Matrix.CursorMoved)
    def _moved(self, event: Matrix.CursorMoved) -> None:
        event.stop()
        gpu = self._row_gpu()
        if gpu is not None and gpu != self._seen_gpu:
            self._seen_gpu = gpu
            self.post_message(GpuChosen(gpu))
        self._draw_texts()

    @property
    def _shown_metric(self) -> Metric:
        return self._metric or best_metric(self._state.report)

    @property
    def _matrix(self) -> Matrix:
        return self.query_one(Matrix)

    def _draw(self) -> None:
        state, matrix = self._state, self._matrix
        drawn_from = (self._shown_metric, state.node, state.report)
        if self._drawn is None or any(new is not old for new, old in zip(drawn_from, self._drawn_from, strict=True)):
            self._drawn_from = drawn_from
            drawn = self._drawn = draw(*drawn_from)
            title = Content.styled(f"Links: {drawn.title}", "head")
            scale = Content.styled(printable(drawn.scale), "quiet")
            put(self.query_one("#links-title", Static), Content("\n").join([title, scale]))
            matrix.show_grid(drawn.grid)
        self._arrange()
        if state.selected_gpu != self._seen_gpu:
            self._seen_gpu = state.selected_gpu
            if state.selected_gpu in self._drawn.row_gpus:
                matrix.put_cursor(self._drawn.row_gpus.index(state.selected_gpu), matrix.column)
        self._draw_texts()

    def _draw_texts(self) -> None:
        if not self.size.width:  # not laid out yet: a resize follows
            return
        gpu = self._row_gpu()
        shown = self._state.selected_gpu if gpu is None else gpu
        # without the scroll bar and, beside the matrix, the gap
        width = self.size.width - 2 - (self._matrix.grid.width + 4 if self.has_class("-beside") else 0)
        # the only live readings in the details; everything else comes from the facts or the report
        live = [(tick.links_up, *(tick.readings.get(name) for name in _LIVE)) for tick in self._state.latest.values()]
        details_from = (self._state.node, self._state.report, shown, width, live)
        if not self._details_from or not _same(details_from, self._details_from):
            self._details_from = details_from
            reported = details(self._state, shown, width)
            put(self.query_one("#links-details", Static), reported)
        put(self.query_one("#links-pair", Static), Content(self._pair_text()))

    def _pair_text(self) -> str:
        drawn, matrix, state = self._drawn, self._matrix, self._state
        if drawn is None or not drawn.row_gpus:
            return ""
        a, b = drawn.row_gpus[matrix.row], drawn.row_gpus[matrix.column]
        ranks = [rank_of_gpu(state.report, state.node, gpu) for gpu in (a, b)]
        if a is None and b is None:
            ranks = [int(drawn.grid.names[position].removeprefix("r")) for position in (matrix.row, matrix.column)]
        one, other = ranks
        return pair_line(state, a, b, None if one is None or other is None else (one, other))

    def _row_gpu(self) -> int | None:
        row_gpus = self._drawn.row_gpus if self._drawn is not None else ()
        return row_gpus[self._matrix.row] if self._matrix.row < len(row_gpus) else None

    def _arrange(self) -> None:
        grid = self._matrix.grid
        self.set_class(bool(grid.names) and self.size.width >= grid.width + _BESIDE_WIDTH, "-beside")


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Facts and report are compared by identity: comparing their contents would cost more than drawing."""
    return all(a is b for a, b in zip(one[:2], other[:2], strict=True)) and one[2:] == other[2:]
