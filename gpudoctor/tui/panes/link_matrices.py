"""The matrices of the Links pane: paths that the driver reports, and rates that were measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from gpudoctor.checks.core.condemning import condemning
from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.facts.model.gpu import GpuPair
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.report.model import Report, findings_of
from gpudoctor.report.tables.devices import gpu_of_rank, on_cpus
from gpudoctor.report.tables.links import RateMatrix, both_ways_matrix, pair_matrix, peer_matrix, way_of
from gpudoctor.text.grouped import grouped
from gpudoctor.text.units import short_figure
from gpudoctor.tui.labels import Tone
from gpudoctor.tui.widgets.bars import heat_sign
from gpudoctor.tui.widgets.matrix import DIAGONAL, Cell, Grid

Metric = Literal["topology", "nvlinks", "p2p", "peer", "both", "pairs"]
METRICS: tuple[Metric, ...] = ("topology", "nvlinks", "p2p", "peer", "both", "pairs")
_FACT_TITLES: dict[Metric, str] = {
    "topology": "topology: how two GPUs reach each other",
    "nvlinks": "NVLinks between two GPUs, their number",
    "p2p": "peer-to-peer as the driver shows it (row reads from column)",
}
_FIGURE_TITLES: dict[Metric, str] = {
    "peer": "copies, row to column, one way at a time, GB/s",
    "both": "copies both ways at once, sum in GB/s",
    "pairs": "send and receive of two ranks, GB/s each way",
}
_JUDGE: dict[Metric, str] = {"peer": "link.peer", "both": "link.peer", "pairs": "collective.pairs"}
_RATES: dict[Metric, Callable[[Measurements], RateMatrix]] = {
    "peer": peer_matrix,
    "both": both_ways_matrix,
    "pairs": pair_matrix,
}
_NAMES_MAX = 3
UNTRUSTED = "?"  # what the driver still says of a GPU that is lost or needs a reset
_MEANINGS = {
    "PIX": "PIX one PCIe bridge",
    "PXB": "PXB several bridges",
    "PHB": "PHB the CPU's root",
    "NODE": "NODE across one NUMA node",
    "SYS": "SYS across CPU sockets",
    "CNS": "CNS chipset not supported",
    "GNS": "GNS GPU not supported",
    "TNS": "TNS topology not supported",
    "DR": "DR disabled by a registry key",
    "NS": "NS not supported",
    "U": "U unknown",
}
_SIGN_TONES: dict[str, Tone] = {"#": "pass", "-": "warn", ".": "low", "!": "fail"}
_TOLD: dict[Status, Tone] = {Status.FAIL: "fail", Status.WARN: "warn", Status.UNKNOWN: "unknown"}


@dataclass(frozen=True)
class Drawn:
    """A grid with its title and the scale of its signs; `row_gpus` are the GPUs of its rows (None: no GPU)."""

    title: str
    scale: str
    grid: Grid
    row_gpus: tuple[int | None, ...]


def best_metric(report: Report | None) -> Metric:
    """The matrix to show until the user chooses one: a measured one, else the topology."""
    if report is not None and report.measurements.peer_links:
        return "peer"
    return "pairs" if report is not None and report.measurements.pairs else "topology"


def draw(metric: Metric, node: Node | None, report: Report | None) -> Drawn:
    """The matrix of one metric."""
    if metric in _FACT_TITLES:
        return _facts(metric, node)
    return _figures(metric, node, report)


def pair_of(node: Node | None, a: int | None, b: int | None) -> GpuPair | None:
    pairs = known(node.pairs) if node is not None else None
    return next((pair for pair in pairs or () if {pair.a, pair.b} == {a, b}), None)


def _facts(metric: Metric, node: Node | None) -> Drawn:
    title = _FACT_TITLES[metric]
    if node is None or not node.gpus:
        return Drawn(title, "no GPU is known here" if node is not None else "no facts yet", Grid(), ())
    indices = [gpu.index for gpu in node.gpus]
    where = {index: position for position, index in enumerate(indices)}
    cells = {(position, position): DIAGONAL for position in range(len(indices))}
    lost = {position for position, gpu in enumerate(node.gpus) if condemning(gpu)}
    for pair in known(node.pairs) or ():
        if pair.a not in where or pair.b not in where:
            continue
        for one, other in ((where[pair.a], where[pair.b]), (where[pair.b], where[pair.a])):
            cells[one, other] = Cell(UNTRUSTED if {one, other} & lost else _fact_text(metric, pair))
    grid = Grid(tuple(str(index) for index in indices), cells)
    return Drawn(title, _fact_note(metric, node, {cell.text for cell in cells.values()}), grid, tuple(indices))


def _fact_text(metric: Metric, pair: GpuPair) -> str:
    if metric == "topology":
        return way_of(pair)
    if metric == "nvlinks":
        count = known(pair.nvlinks)
        # a known path without NVLinks means that there are none
        return str(count) if count is not None else "0" if known(pair.path) else "-"
    return known(pair.p2p_read) or "-"


def _fact_note(metric: Metric, node: Node, texts: set[str]) -> str:
    if isinstance(node.pairs, Missing):
        return f"not known: {node.pairs.reason}"
    statements = [meaning for word, meaning in _MEANINGS.items() if word in texts]
    if metric == "topology" and any(text.startswith("NV") for text in texts):
        statements.insert(0, "NV# NVLinks")
    statements += ["- not known"] if "-" in texts else []
    return ", ".join([*statements, *(["? of a lost GPU, not to be trusted"] if UNTRUSTED in texts else [])])


def _figures(metric: Metric, node: Node | None, report: Report | None) -> Drawn:
    title = _FIGURE_TITLES[metric]
    measurements = report.measurements if report is not None else Measurements()
    matrix = _RATES[metric](measurements)
    rates, ranks = matrix.rates, matrix.ranks
    if not rates:
        return Drawn(title, f"not measured: {_why_not(metric, measurements)} (r measures the links)", Grid(), ())
    gpus = {rank: gpu_of_rank(measurements, node, rank) for rank in ranks}
    names = tuple(str(gpu) if (gpu := gpus[rank]) is not None else f"r{rank}" for rank in ranks)
    row_gpus = tuple(gpus[rank] for rank in ranks)
    cpu = on_cpus(measurements)
    kinds = {(a, b): "CPU" if cpu else way_of(pair_of(node, gpus[a], gpus[b])) for a, b in rates}
    yardsticks, reported = _yardsticks(metric, rates, kinds, report, cpu)
    tones = _tones(findings_of(report, _JUDGE[metric]))
    cells = {(position, position): DIAGONAL for position in range(len(ranks))}
    where = {rank: position for position, rank in enumerate(ranks)}
    for (a, b), rate in rates.items():
        tone = _tone_of(tones, gpus[a], gpus[b])
        sign = "!" if (a, b) in matrix.wrong else heat_sign(rate / yardsticks[kinds[a, b]])
        # a pair below the expected rate never looks full, even if its peers are equally slow
        sign = "-" if sign == "#" and tone is not None else sign
        cells[where[a], where[b]] = Cell(short_figure(rate), sign, tone or (None if cpu else _SIGN_TONES[sign]))
    if cpu:
        title = f"CPU ranks (gloo), not judged: {title}"
    scale = f"# >=90%  - 50..90%  . <50% of {reported}" + ("   ! arrived wrong" if matrix.wrong else "")
    return Drawn(title, scale, Grid(names, cells), row_gpus)


def _why_not(metric: Metric, measurements: Measurements) -> str:
    for name in ("collective",) if metric == "pairs" else ("peer", "link"):
        if name in measurements.not_run:
            return measurements.not_run[name].reason
    return "not in a run so far"


def _yardsticks(
    metric: Metric,
    rates: dict[tuple[int, int], float],
    kinds: dict[tuple[int, int], str],
    report: Report | None,
    cpu: bool,
) -> tuple[dict[str, float], str]:
    """The rate that is 100 % for each kind of pair, and its description.

    It is the median of the kind, or the floor that the check expects if that is higher; the highest rate for CPU ranks.
    """
    if cpu:
        highest = max(rates.values())
        return {"CPU": highest or 1.0}, f"the highest here, {short_figure(highest)} GB/s"
    by_kind = grouped((kinds[position], rate) for position, rate in rates.items())
    medians = {kind: median(found) or 1.0 for kind, found in by_kind.items()}
    floor = _floor(report, _JUDGE[metric]) if len(medians) == 1 and metric != "both" else None
    if floor is None:
        shown = [f"{short_figure(rate)} {kind}" for kind, rate in medians.items()]
        more = f", {len(shown) - _NAMES_MAX} more kinds" if len(shown) > _NAMES_MAX else ""
        return medians, f"the median of its kind (GB/s: {', '.join(shown[:_NAMES_MAX])}{more})"
    kind, usual = next(iter(medians.items()))
    if floor > usual:
        return {kind: floor}, f"{short_figure(floor)} GB/s, which {_JUDGE[metric]} expects"
    return {kind: usual}, f"{short_figure(usual)} GB/s, the median ({_JUDGE[metric]}: at least {short_figure(floor)})"


def _floor(report: Report | None, check_id: str) -> float | None:
    """The rate that the check expects, the highest if it has several."""
    expectations = [found.expected for found in findings_of(report, check_id) if found.expected is not None]
    floors = [each.value for each in expectations if each.unit == "GB/s" and not isinstance(each.value, str)]
    return max((float(floor) for floor in floors if floor is not None), default=None)


def _tones(findings: tuple[Finding, ...]) -> dict[frozenset[int], Tone]:
    """The tones of pairs, and of single GPUs whose pairs are all concerned, with a problem."""
    tones: dict[frozenset[int], Tone] = {}
    for finding in findings:
        if finding.subject.all_gpus and finding.status in _TOLD:
            tones.setdefault(frozenset(finding.subject.all_gpus), _TOLD[finding.status])
    return tones


def _tone_of(tones: dict[frozenset[int], Tone], a: int | None, b: int | None) -> Tone | None:
    if a is None or b is None:
        return None
    return tones.get(frozenset((a, b))) or tones.get(frozenset((a,))) or tones.get(frozenset((b,)))
