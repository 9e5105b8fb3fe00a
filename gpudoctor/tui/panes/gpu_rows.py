"""The table of GPUs: one row each, the chosen one marked, drawn anew only where it changed."""

from __future__ import annotations

from textual import events
from textual.binding import Binding

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.tui.messages import GpuChosen
from gpudoctor.tui.panes.gpu_columns import columns_for, gpu_row, heading
from gpudoctor.tui.state import State
from gpudoctor.tui.widgets.lines import Lines, Row, row


class GpuRows(Lines, can_focus=True):
    """Keys and mouse choose a GPU (posts GpuChosen). Where they are more than fit, the chosen one stays in sight."""

    BINDINGS = [
        Binding("up,k", "choose(-1)", "GPU before", show=False),
        Binding("down,j", "choose(1)", "Next GPU", show=False),
    ]
    DEFAULT_CSS = "GpuRows { height: 1fr; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._state: State | None = None
        self._first = 0

    def show(self, state: State) -> None:
        self._state = state
        width, height = self.size
        if not width or not height:
            return
        gpus = self._gpus
        columns = columns_for(width, nvlink=any(_has_nvlink(gpu, state) for gpu in gpus))
        if not gpus:
            waiting = " waiting for the first reading" if state.node is None else " no GPU on this node"
            self.show_rows([heading(columns), row((waiting, "dim"))])
            return
        place = self._place()
        seen = max(1, height - 1)
        self._first = max(min(self._first, place, len(gpus) - seen), place - seen + 1, 0)
        rows = [heading(columns)]
        for gpu in gpus[self._first : self._first + seen]:
            tick = state.latest.get(gpu.index)
            chosen = gpu.index == state.selected_gpu
            each = gpu_row(columns, gpu, tick, state.health_of(gpu.index), chosen)
            rows.append(each if state.trouble is None else _faded(each))
        self.border_title = "GPUs" if state.trouble is None else "GPUs, as last known"
        self.show_rows(rows)
        hidden = len(gpus) - seen
        self.border_subtitle = f"{hidden} more: up/down" if hidden > 0 else "GB/s received/sent"

    def on_resize(self) -> None:
        if self._state is not None:
            self.show(self._state)

    def action_choose(self, step: int) -> None:
        self._choose(self._place() + step)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and 1 <= offset.y <= len(self._gpus) - self._first:
            self._choose(self._first + offset.y - 1)

    def on_mouse_scroll_up(self) -> None:
        self.action_choose(-1)

    def on_mouse_scroll_down(self) -> None:
        self.action_choose(1)

    @property
    def _gpus(self) -> tuple[Gpu, ...]:
        return self._state.node.gpus if self._state is not None and self._state.node is not None else ()

    def _place(self) -> int:
        chosen = self._state.selected_gpu if self._state is not None else 0
        return next((place for place, gpu in enumerate(self._gpus) if gpu.index == chosen), 0)

    def _choose(self, place: int) -> None:
        gpus = self._gpus
        if gpus:
            self.post_message(GpuChosen(gpus[min(max(place, 0), len(gpus) - 1)].index))


def _has_nvlink(gpu: Gpu, state: State) -> bool:
    tick = state.latest.get(gpu.index)
    return bool(known(gpu.nvlinks)) or (tick is not None and "nvlink_rx_gb_s" in tick.readings)


def _faded(each: Row) -> Row:
    """What was read before nothing came any more; the bars too lose their colour, the health words do not."""
    return Row(
        tuple((text, "dim" if style in ("", "bar", "strong") else style) for text, style in each.runs), each.cursor
    )
