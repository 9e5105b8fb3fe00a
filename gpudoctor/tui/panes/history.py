"""The last minutes of one GPU, each reading on a fixed scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.links import lanes_gb_s
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.stream.messages import PCIE_EVERY_S
from gpudoctor.report.tables.table import cell
from gpudoctor.text.units import rate_number, rounded_duration_text
from gpudoctor.tui.labels import both, graph
from gpudoctor.tui.panes.pane import DrawnLines
from gpudoctor.tui.state import State
from gpudoctor.tui.widgets.lines import Row, row

SPAN_S = 300  # the graph covers at least this, or all that was watched
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600)
# a reading stays valid for some ticks, and until the next one of PCIe throughput, which comes more rarely
_HOLDS_TICKS = 5
_COLDEST_C, _HOTTEST_C = 20.0, 90.0
_LABEL, _VALUE = 16, 9
_TALLEST = 5
Samples = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class _Line:
    """One reading: label, scale (None: unknown), series (the greatest is drawn), and the current value as text."""

    label: str
    low: float
    high: float | None
    series: tuple[Samples, ...]
    now: str


class HistoryGraph(DrawnLines):
    """The selected GPU's history; taller if there is room, without its last readings if there is too little."""

    def _draw(self, state: State, width: int, height: int) -> None:
        gpu = state.gpu(state.selected_gpu)
        if gpu is None or state.opening is None:
            self.border_title, self.border_subtitle = "History", ""
            self.show_rows([])
            return
        columns = max(1, width - _LABEL - _VALUE)
        watched_s = _watched_s(state, gpu)
        step_s = step_for(columns, state.opening.interval_s, watched_s)
        last = f": last {rounded_duration_text(min(step_s * columns, watched_s))}" if watched_s else ": history"
        self.border_title = f"GPU {gpu.index}{last}"
        self.border_subtitle = "fixed scales"
        self.show_rows(history_rows(state, gpu, columns, height, step_s))


def history_rows(state: State, gpu: Gpu, columns: int, height: int, step_s: float) -> list[Row]:
    """The rows for `height` lines; each column covers `step_s` seconds."""
    if state.opening is None:
        return []
    lines = _lines(state, gpu)[:height]
    end_s = state.tick.at_s if state.tick is not None else state.opening.at_s
    holds_s = max(_HOLDS_TICKS * state.opening.interval_s, PCIE_EVERY_S + state.opening.interval_s, step_s)
    taller, rest = divmod(height, len(lines))
    rows: list[Row] = []
    for number, line in enumerate(lines):
        tall = min(_TALLEST, taller + (number < rest))
        if line.high is None:
            drawn = [" " * columns] * tall
        else:
            drawn = graph(_columns(line.series, end_s, step_s, columns, holds_s), line.low, line.high, tall)
        for y, part in enumerate(drawn):
            label, now = (line.label, line.now) if y == tall - 1 else ("", "")
            rows.append(row((f" {label:<{_LABEL - 1}}", "dim"), (part, "bar"), (f"{now:>{_VALUE - 1}} ", "")))
    return rows


def step_for(columns: int, interval_s: float, watched_s: float) -> float:
    """Seconds in a column: as few as show all that was watched, up to `SPAN_S`, but at least one interval."""
    wanted_s = min(watched_s, SPAN_S)
    return next((s for s in _STEPS_S if s >= interval_s and s * columns >= wanted_s), _STEPS_S[-1])


def _watched_s(state: State, gpu: Gpu) -> float:
    samples = state.history.get((gpu.index, "utilization_pct")) or state.history.get((gpu.index, "temperature_c"))
    return samples[-1][0] - samples[0][0] if samples else 0.0


def _lines(state: State, gpu: Gpu) -> list[_Line]:
    tick = state.latest.get(gpu.index)
    now = tick.readings if tick is not None and gpu.index not in state.lost else {}
    limit_w = known(gpu.power.limit_w)
    top_mhz = known(gpu.clocks.sm_max_mhz)
    pcie_gb_s, nvlink_gb_s = pcie_limit_gb_s(gpu), nvlink_limit_gb_s(gpu)

    def series(*names: str) -> tuple[Samples, ...]:
        return tuple(state.history.get((gpu.index, name), ()) for name in names)

    def whole(name: str) -> str:
        return cell(now.get(name), ".0f")

    lines = [
        _Line("util    0-100 %", 0, 100, series("utilization_pct"), whole("utilization_pct")),
        _Line(f"power {_upto(limit_w)} W", 0, limit_w, series("power_w"), whole("power_w")),
        _Line("temp   20-90 °C", _COLDEST_C, _HOTTEST_C, series("temperature_c"), whole("temperature_c")),
        _Line(f"SM   {_upto(top_mhz)} MHz", 0, top_mhz, series("sm_mhz"), whole("sm_mhz")),
    ]
    traffic = (("PCIe", "pcie", pcie_gb_s), ("NVL ", "nvlink", nvlink_gb_s))
    for label, name, limit in traffic:
        received, sent = f"{name}_rx_gb_s", f"{name}_tx_gb_s"
        if name == "nvlink" and limit is None and received not in now:
            continue  # a GPU without NVLink
        text = both(now.get(received), now.get(sent))
        lines.append(_Line(f"{label} {_upto(limit)} GB/s", 0, limit, series(received, sent), text))
    return lines


def _upto(limit: float | None) -> str:
    return "0-?" if limit is None else f"0-{rate_number(limit)}"


def pcie_limit_gb_s(gpu: Gpu) -> float | None:
    """The highest rate in one direction that GPU and slot allow."""
    return lanes_gb_s(known(gpu.pcie.generation_max), known(gpu.pcie.width_max))


def nvlink_limit_gb_s(gpu: Gpu) -> float | None:
    """The line rate of all NVLinks of the GPU together in one direction, up or down."""
    links = known(gpu.nvlinks) or ()
    speeds = [speed for link in links if (speed := known(link.speed_gb_s))]
    # a link that is down has no speed
    return max(speeds) * len(links) if speeds else None


def _columns(
    series: tuple[Samples, ...], end_s: float, step_s: float, columns: int, holds_s: float
) -> list[float | None]:
    """The mean of each step, the greatest of several series. Steps are aligned to absolute time, so old ones stay."""
    last = int(end_s // step_s)
    means: list[float | None] = [None] * columns
    for samples in series:
        sums, counts = [0.0] * columns, [0] * columns
        for at_s, value in reversed(samples):
            x = columns - 1 - (last - int(at_s // step_s))
            if x < 0:
                break
            if x < columns:
                sums[x] += value
                counts[x] += 1
        held: float | None = None
        held_x = 0
        for x in range(columns):
            if counts[x]:
                held, held_x = sums[x] / counts[x], x
            elif held is None or (x - held_x) * step_s > holds_s:
                continue
            before = means[x]
            means[x] = held if before is None else max(before, held)
    return means
