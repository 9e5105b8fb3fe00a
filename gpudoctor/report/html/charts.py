"""Rates over message sizes, and matrices of GPUs with figure and sign; every figure in a chart is also in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log2, log10

import msgspec

from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.report.html.parts import Curve, PairTable, Plot, Point, Section, drawable, section
from gpudoctor.report.model import Report
from gpudoctor.report.tables.devices import rank_name
from gpudoctor.report.tables.links import Place, RateMatrix, both_ways_matrix, pair_matrix, peer_matrix, way_of
from gpudoctor.report.tables.table import NOT_KNOWN
from gpudoctor.text.units import figure_text, size_text

# the area of the curves in the drawing
_LEFT, _WIDTH, _BOTTOM, _HEIGHT = 56, 500, 270, 240
_MEANING_OF_LINK = {
    "NV": "NV#: that many NVLinks",
    "PIX": "PIX: one PCIe switch",
    "PXB": "PXB: several PCIe switches",
    "PHB": "PHB: through the CPU's PCIe host bridge",
    "NODE": "NODE: between host bridges of one NUMA node",
    "SYS": "SYS: between NUMA nodes",
}
# (sign, class, least share of the best figure in the matrix)
_HEAT_STEPS = (("●", "heat4", 0.9), ("◕", "heat3", 0.7), ("◑", "heat2", 0.5), ("◔", "heat1", 0.25), ("○", "heat0", 0.0))
_DIAGONAL = "–"


def lines_by_size(series: Mapping[str, Sequence[tuple[int, float]]], label: str) -> Plot:
    """A line of GB/s per name over message sizes in bytes (logarithmic axis); the value axis starts at 0."""
    sizes = [size for points in series.values() for size, _ in points]
    low, high = log2(min(sizes)), log2(max(sizes))
    ticks = _ticks(max(drawable(value) for points in series.values() for _, value in points))

    def across(size: int) -> float:
        return round(_LEFT + (log2(size) - low) / ((high - low) or 1.0) * _WIDTH, 2)

    def up(value: float) -> float:
        return round(_BOTTOM - drawable(value) / ticks[-1] * _HEIGHT, 2)

    curves = tuple(
        Curve(
            name,
            tuple(
                Point(across(size), up(value), f"{name}, {size_text(size)}: {drawable(value):.2f} GB/s")
                for size, value in points
            ),
        )
        for name, points in series.items()
    )
    powers = tuple((across(1 << power), size_text(1 << power)) for power in _powers(low, high))
    return Plot(label, powers, tuple((up(tick), f"{tick:g}") for tick in ticks), curves)


def _ticks(largest: float) -> list[float]:
    """From 0 to at least `largest` in steps of 1, 2 or 5 times a power of ten.

    >>> _ticks(480.0), _ticks(1.7)
    ([0.0, 100.0, 200.0, 300.0, 400.0, 500.0], [0.0, 0.5, 1.0, 1.5, 2.0])
    """
    largest = max(largest, 1e-6)
    power = 10.0 ** floor(log10(largest / 4))
    step = next((factor * power for factor in (1, 2, 5) if largest / (factor * power) <= 5), 10 * power)
    count = int(-(-largest // step))
    return [round(n * step, 10) for n in range(count + 1)]


def _powers(low: float, high: float) -> list[int]:
    """At most 8 powers of two within the axis.

    >>> _powers(10, 30)
    [10, 13, 16, 19, 22, 25, 28]
    """
    first, last = round(low), round(high)
    return list(range(first, last + 1, (last - first) // 7 + 1))


def topology(report: Report) -> tuple[Section, ...]:
    """How each pair of GPUs is connected; nothing if the report does not include these facts."""
    facts = report.facts
    if isinstance(facts, msgspec.UnsetType) or isinstance(facts.pairs, Missing) or not facts.pairs:
        return ()
    cells: dict[Place, tuple[str, str, str]] = {}
    kinds = set()
    for pair in facts.pairs:
        word = way_of(pair)
        kind = "NV" if word.startswith("NV") else "none" if word == NOT_KNOWN else word
        kinds.add(kind)
        off = [known(pair.p2p_read), known(pair.p2p_write)]
        note = next((f" ({each})" for each in off if each not in (None, "OK")), "")
        for place in ((pair.a, pair.b), (pair.b, pair.a)):
            cells[place] = (word + note, "", f"way {kind.lower()}")
    indices = sorted({index for place in cells for index in place})
    legend = [message for kind, message in _MEANING_OF_LINK.items() if kind in kinds]
    if any("(" in text for text, _, _ in cells.values()):
        legend.append("in brackets why peer-to-peer is off: CNS chipset, GNS GPU, TNS topology, DR registry key, NS, U")
    names = {index: f"GPU {index}" for index in indices}
    return section(
        "Topology", (_square(names, cells, "How each two GPUs reach each other", "; ".join(legend)),), "topology"
    )


def bandwidths(measured: Measurements) -> list[PairTable]:
    """Heat maps of copies between GPUs, and of send and receive between ranks."""
    maps = []
    if measured.peer_links:
        peer, both = peer_matrix(measured), both_ways_matrix(measured).rates.values()
        off = len(peer.through_host)
        notes = [f"{off} of {len(peer.rates)} directions go through the host (h)"] if off else []
        notes += [f"both ways at once {figure_text(min(both))} to {figure_text(max(both))} GB/s"] if both else []
        maps.append(_heat(measured, peer, f"Copies of {size_text(peer.size_bytes)} from row to column, GB/s", notes))
    if measured.pairs:
        pairs = pair_matrix(measured)
        title = f"Send and receive of {size_text(pairs.size_bytes)} between two ranks, GB/s each way"
        maps.append(_heat(measured, pairs, title, []))
    return maps


def _heat(measured: Measurements, matrix: RateMatrix, title: str, notes: Sequence[str]) -> PairTable:
    rates = matrix.rates
    best = max(rates.values())
    cells = {}
    for place, rate in rates.items():
        share = rate / best if best > 0 else 0.0
        sign, heat = next((sign, heat) for sign, heat, least in _HEAT_STEPS if share >= least)
        cells[place] = (figure_text(rate), sign + (" h" if place in matrix.through_host else ""), heat)
    scale = "of the best here: ● from 90 %, ◕ 70 %, ◑ 50 %, ◔ 25 %, ○ less"
    legend = "; ".join((f"best {figure_text(best)}, worst {figure_text(min(rates.values()))} GB/s", scale, *notes))
    return _square({rank: rank_name(measured, rank) for rank in matrix.ranks}, cells, title, legend)


def _square(
    names: Mapping[int, str], cells: Mapping[Place, tuple[str, str, str]], label: str, legend: str
) -> PairTable:
    rows = tuple(
        tuple(cells.get((a, b), (_DIAGONAL if a == b else NOT_KNOWN, "", "none")) for b in names) for a in names
    )
    return PairTable(label, tuple(names.values()), rows, legend)
