"""The table of GPUs: one row for each, the selected one marked."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.binding import Binding

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.stream.messages import GpuTick
from gpudoctor.report.tables.table import cell
from gpudoctor.text.units import MIB, gib_number
from gpudoctor.tui.labels import STYLE_OF, bar, both, held, load_tone
from gpudoctor.tui.panes.pane import DrawnLines, GpuChosen
from gpudoctor.tui.state import State
from gpudoctor.tui.widgets.lines import Row, Run, row

# On a narrow terminal columns are dropped in this order: clock event reason, NVLink, PCIe, SM clock, memory bar,
# utilisation bar, power. Index, utilisation, memory, temperature and health always stay. Remaining width makes the
# bars longer, up to 24 characters.

# name: (width, alignment, title, reading that is shown as a whole number)
_COLUMNS = {
    "gpu": (4, "<", " GPU", ""),
    "util_bar": (4, "<", "util", ""),
    "util": (5, ">", "util%", "utilization_pct"),
    "memory_bar": (4, "<", "mem", ""),
    "memory": (7, ">", "mem GiB", ""),
    "temperature": (3, ">", "°C", "temperature_c"),
    "power": (4, ">", "W", "power_w"),
    "clock": (4, ">", "MHz", "sm_mhz"),
    "pcie": (9, ">", "PCIe GB/s", ""),
    "nvlink": (8, ">", "NVL GB/s", ""),
    "held": (9, "<", "clocks", ""),
    "health": (7, "<", "health", ""),
}
# the bar beside it has the name
_BESIDE_BAR = {"util": (3, "%"), "memory": (5, "GiB")}
_DROPPED_FIRST = ("held", "nvlink", "pcie", "clock", "memory_bar", "util_bar", "power")
_BARS = ("util_bar", "memory_bar")
_LONGEST_BAR = 24
_WIDE = 130


@dataclass(frozen=True)
class Columns:
    """The columns from left to right: their titles and widths, and the number of blanks between them."""

    titles: dict[str, str]
    widths: dict[str, int]
    gap: int

    def cell(self, name: str, text: str) -> str:
        """The text in the width and alignment of this column."""
        return f"{text:{_COLUMNS[name][1]}{self.widths[name]}}"


def columns_for(width: int, *, nvlink: bool = True) -> Columns:
    """As many columns as fit into `width` characters, with the bars stretched over the rest.

    `nvlink`: whether any GPU has NVLinks.
    """
    gap = 2 if width >= _WIDE else 1
    names = [name for name in _COLUMNS if nvlink or name != "nvlink"]
    for name in ("", *_DROPPED_FIRST):
        if name in names:
            names.remove(name)
        titles = {each: _COLUMNS[each][2] for each in names}
        widths = {each: _COLUMNS[each][0] for each in names}
        for each, (narrower, unit) in _BESIDE_BAR.items():
            if f"{each}_bar" in names:
                titles[each], widths[each] = unit, narrower
        taken = sum(widths.values()) + gap * (len(names) - 1)
        if taken <= width:
            break
    bars = [name for name in _BARS if name in names]
    for name in bars:
        widths[name] += max(0, min((width - taken) // len(bars), _LONGEST_BAR - 4))
    return Columns(titles, widths, gap)


def heading(columns: Columns) -> Row:
    """The titles, each with its unit."""
    cells = [columns.cell(name, title) for name, title in columns.titles.items()]
    return row(((" " * columns.gap).join(cells), "title"))


def gpu_row(columns: Columns, gpu: Gpu, tick: GpuTick | None, health: str, chosen: bool) -> Row:
    """The row of one GPU; a dash for a missing reading, and for every reading of a lost GPU."""
    readings = tick.readings if tick is not None and health != "LOST" else {}
    used, total = readings.get("memory_used_mib"), known(gpu.memory_total_mib)
    util = readings.get("utilization_pct")
    shares = {
        "util_bar": None if util is None else util / 100,
        "memory_bar": None if used is None or not total else used / total,
    }
    texts = {
        "memory": "-" if used is None else gib_number(used * MIB),
        "pcie": both(readings.get("pcie_rx_gb_s"), readings.get("pcie_tx_gb_s")),
        "nvlink": both(readings.get("nvlink_rx_gb_s"), readings.get("nvlink_tx_gb_s")),
        "held": held(tick.events if tick is not None and readings else None),
    }
    runs: list[Run] = []
    for name, width in columns.widths.items():
        if runs:
            runs.append((" " * columns.gap, ""))
        if name == "gpu":
            runs.append((f"{'>' if chosen else ' '}{gpu.index:>3}", "strong" if chosen else ""))
        elif name in shares:
            full, empty = bar(shares[name], width)
            runs += [(full, load_tone(shares[name])), (empty, "rest")]
        elif name == "health":
            runs.append((columns.cell(name, health), STYLE_OF.get(health, "")))
        else:
            text = texts[name] if name in texts else cell(readings.get(_COLUMNS[name][3]), ".0f")
            runs.append((columns.cell(name, text), "dim" if text == "-" else ""))
    return Row(tuple(runs), chosen)


class GpuRows(DrawnLines, can_focus=True):
    """The table; keys and mouse select a GPU (posts GpuChosen). It scrolls to keep the selected one visible."""

    BINDINGS = [
        Binding("up,k", "choose(-1)", "GPU before", show=False),
        Binding("down,j", "choose(1)", "Next GPU", show=False),
    ]
    DEFAULT_CSS = "GpuRows { height: 1fr; }"
    _first = 0

    def _draw(self, state: State, width: int, height: int) -> None:
        gpus = self._gpus
        columns = columns_for(width, nvlink=any(_has_nvlink(gpu, state) for gpu in gpus))
        if not gpus:
            waiting = " waiting for the first reading" if state.node is None else " the driver shows no GPU"
            self.show_rows([heading(columns), row((waiting, "dim"))])
            return
        position = self._position()
        seen = max(1, height - 1)
        self._first = max(min(self._first, position, len(gpus) - seen), position - seen + 1, 0)
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

    def action_choose(self, step: int) -> None:
        self._choose(self._position() + step)

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

    def _position(self) -> int:
        chosen = self._state.selected_gpu if self._state is not None else 0
        return next((position for position, gpu in enumerate(self._gpus) if gpu.index == chosen), 0)

    def _choose(self, position: int) -> None:
        gpus = self._gpus
        if gpus:
            self.post_message(GpuChosen(gpus[min(max(position, 0), len(gpus) - 1)].index))


def _has_nvlink(gpu: Gpu, state: State) -> bool:
    tick = state.latest.get(gpu.index)
    return bool(known(gpu.nvlinks)) or (tick is not None and "nvlink_rx_gb_s" in tick.readings)


def _faded(each: Row) -> Row:
    """The row without colours, for old readings; only the health word keeps its colour."""
    return Row(
        tuple(
            (text, "dim" if style in ("", "bar-low", "bar", "bar-high", "strong") else style)
            for text, style in each.runs
        ),
        each.cursor,
    )
