"""Which columns the table of GPUs has at a width, and what stands in them.

The order in which columns give way on a narrow terminal: why clocks are held, NVLink, PCIe, SM
clock, the memory bar, the utilisation bar, power. Index, utilisation, memory, temperature and
health always stay. What is left of the width makes the bars longer, up to 24 characters.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.stream.messages import GpuTick
from gpudoctor.tui.labels import STYLE_OF, bar, both, held, whole
from gpudoctor.tui.widgets.lines import Row, Run, row
from gpudoctor.units import MIB, gib_number

_WIDTHS = {
    "gpu": 4,
    "util_bar": 4,
    "util": 5,
    "memory_bar": 4,
    "memory": 7,
    "temperature": 3,
    "power": 4,
    "clock": 4,
    "pcie": 9,
    "nvlink": 8,
    "held": 9,
    "health": 7,
}
_BESIDE_BAR = {"util": 3, "memory": 5}
_TITLES = {
    "gpu": " GPU",
    "util_bar": "util",
    "util": "util%",
    "memory_bar": "mem",
    "memory": "mem GiB",
    "temperature": "°C",
    "power": "W",
    "clock": "MHz",
    "pcie": "PCIe GB/s",
    "nvlink": "NVL GB/s",
    "held": "clocks",
    "health": "health",
}
_LEFT = ("gpu", "util_bar", "memory_bar", "held", "health")
_DROPPED_FIRST = ("held", "nvlink", "pcie", "clock", "memory_bar", "util_bar", "power")
_BARS = ("util_bar", "memory_bar")
_LONGEST_BAR = 24
_WIDE = 130


@dataclass(frozen=True)
class Columns:
    """The columns from left to right with their widths, and the blanks between two."""

    widths: tuple[tuple[str, int], ...]
    gap: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.widths)


def columns_for(width: int, *, nvlink: bool = True) -> Columns:
    """As many columns as fit into `width` characters, the bars stretched over what is left.

    `nvlink`: whether any GPU has NVLinks at all.
    """
    gap = 2 if width >= _WIDE else 1
    names = [name for name in _WIDTHS if nvlink or name != "nvlink"]
    for name in ("", *_DROPPED_FIRST):
        if name in names:
            names.remove(name)
        # beside its bar a figure needs no title of its own
        widths = {each: _BESIDE_BAR[each] if f"{each}_bar" in names else _WIDTHS[each] for each in names}
        taken = sum(widths.values()) + gap * (len(names) - 1)
        if taken <= width:
            break
    bars = [name for name in _BARS if name in names]
    longer = min((width - taken) // len(bars), _LONGEST_BAR - 4) if bars and width > taken else 0
    return Columns(tuple((name, widths[name] + (longer if name in bars else 0)) for name in names), gap)


def heading(columns: Columns) -> Row:
    """The titles, each with its unit."""
    cells = []
    for name, width in columns.widths:
        title = _TITLES[name]
        if f"{name}_bar" in columns.names:
            title = {"util": "%", "memory": "GiB"}[name]  # the bar beside it says the rest
        cells.append(title.ljust(width) if name in _LEFT else title.rjust(width))
    return row((_joined(cells, columns.gap), "title"))


def gpu_row(columns: Columns, gpu: Gpu, tick: GpuTick | None, health: str, chosen: bool) -> Row:
    """One GPU; what was not read is a dash, and of a lost GPU nothing is."""
    readings = tick.readings if tick is not None and health != "LOST" else {}
    used, total = readings.get("memory_used_mib"), known(gpu.memory_total_mib)
    util = readings.get("utilization_pct")
    runs: list[Run] = []
    for name, width in columns.widths:
        if runs:
            runs.append((" " * columns.gap, ""))
        if name == "gpu":
            runs.append((f"{'>' if chosen else ' '}{gpu.index:>3}", "strong" if chosen else ""))
        elif name in _BARS:
            share = util if name == "util_bar" else None if used is None or not total else 100 * used / total
            full, empty = bar(None if share is None else share / 100, width)
            runs += [(full, "bar"), (empty, "rest")]
        elif name == "health":
            runs.append((health.ljust(width), STYLE_OF.get(health, "")))
        else:
            text = _cell(name, readings, tick if readings else None, health)
            runs.append((text.ljust(width) if name in _LEFT else text.rjust(width), "dim" if text == "-" else ""))
    return Row(tuple(runs), chosen)


def _cell(name: str, readings: dict[str, float], tick: GpuTick | None, health: str) -> str:
    get = readings.get
    if name == "util":
        return whole(get("utilization_pct"))
    if name == "memory":
        used = get("memory_used_mib")
        return "-" if used is None else gib_number(used * MIB)
    if name == "pcie":
        return both(get("pcie_rx_gb_s"), get("pcie_tx_gb_s"))
    if name == "nvlink":
        return both(get("nvlink_rx_gb_s"), get("nvlink_tx_gb_s"))
    if name == "held":
        return held(tick.events if tick else None)
    return whole(get({"temperature": "temperature_c", "power": "power_w", "clock": "sm_mhz"}[name]))


def _joined(cells: list[str], gap: int) -> str:
    return (" " * gap).join(cells)
