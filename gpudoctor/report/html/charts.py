"""Charts as inline SVG, and matrices of GPUs with figure and sign; every figure in a chart is also in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log2, log10
from xml.etree.ElementTree import Element

import msgspec

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.report.html.elements import Child, append, element, scroll, section
from gpudoctor.report.model import Report
from gpudoctor.report.tables.devices import rank_name
from gpudoctor.report.tables.links import Place, RateMatrix, both_ways_matrix, pair_matrix, peer_matrix, way_of
from gpudoctor.report.tables.table import NOT_KNOWN
from gpudoctor.units import figure_text, size_text

_WIDTH = 720
_BAR_LEFT, _BAR_RIGHT, _BAR_STEP, _BAR_HEIGHT = 118, 40, 30, 20
_PLOT_LEFT, _PLOT_TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 56, 30, 500, 240
_MARKS = ("circle", "square", "triangle", "diamond", "cross", "plus")
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


class Bar(msgspec.Struct, frozen=True):
    """One rank: its name, its parts in ms in the order of the part names, and its status if there is a problem."""

    name: str
    parts_ms: tuple[float, ...]
    status: Status | None = None


def stacked_bars(names: Sequence[str], bars: Sequence[Bar], label: str) -> Element:
    """A bar per rank, with a colour and pattern per part."""
    bars = [msgspec.structs.replace(bar, parts_ms=tuple(_sane(part) for part in bar.parts_ms)) for bar in bars]
    longest = max((sum(bar.parts_ms) for bar in bars), default=0.0)
    ticks = _ticks(longest)
    room = _WIDTH - _BAR_LEFT - _BAR_RIGHT
    scale = room / max(ticks[-1], longest)
    top = 34
    bottom = top + len(bars) * _BAR_STEP
    svg = element(
        "svg", element("title", label), _patterns(), viewBox=f"0 0 {_WIDTH} {bottom + 34}", role="img", aria_label=label
    )
    x = float(_BAR_LEFT)
    for number, name in enumerate(names):
        append(svg, element("rect", x=x, y=6, width=14, height=14, class_=f"part{number}"))
        append(svg, element("text", name, x=x + 20, y=17))
        x += 40 + 8 * len(name)
    for tick in ticks:
        at = _BAR_LEFT + tick * scale
        append(svg, element("line", x1=at, x2=at, y1=top, y2=bottom, class_="grid"))
        append(svg, element("text", f"{tick:g}", x=at, y=bottom + 16, text_anchor="middle", class_="tick"))
    append(svg, element("text", "ms", x=_WIDTH - 4, y=bottom + 16, text_anchor="end", class_="tick"))
    for row, bar in enumerate(bars):
        y = top + row * _BAR_STEP + (_BAR_STEP - _BAR_HEIGHT) / 2
        append(svg, element("text", bar.name, x=_BAR_LEFT - 8, y=y + 15, text_anchor="end", class_="name"))
        at = float(_BAR_LEFT)
        for number, part in enumerate(bar.parts_ms):
            wide = part * scale
            said = element("title", f"{bar.name}: {names[number]} {part:.2f} ms")
            place = {"x": round(at, 2), "y": y, "width": round(wide, 2), "height": _BAR_HEIGHT}
            append(svg, element("rect", said, class_=f"part{number}", **place))
            at += wide
        if bar.status is not None:
            word = f"◀ {bar.status.value.upper()}"
            x = min(at + 6, _WIDTH - 4 - 9.0 * len(word))
            append(svg, element("text", word, x=round(x, 2), y=y + 15, class_=f"mark {bar.status.value}"))
    return svg


def _patterns() -> Element:
    """Hatches, so that the parts differ in black and white print and for colour-blind readers."""
    lines = element("path", d="M0 6 L6 0 M-1 1 L1 -1 M5 7 L7 5", class_="hatch")
    dots = element("circle", cx=3, cy=3, r=1.3, class_="dots")
    return element(
        "defs",
        *(
            element(
                "pattern",
                element("rect", width=6, height=6, class_=under),
                mark,
                id=name,
                width=6,
                height=6,
                patternUnits="userSpaceOnUse",
            )
            for name, under, mark in (("hatched", "under1", lines), ("dotted", "under2", dots))
        ),
    )


def lines_by_size(series: Mapping[str, Sequence[tuple[int, float]]], unit: str, label: str) -> Element:
    """A line per name over message sizes in bytes (logarithmic axis); the value axis starts at 0."""
    series = {name: [(size, _sane(value)) for size, value in points] for name, points in series.items()}
    sizes = [size for points in series.values() for size, _ in points]
    low, high = log2(min(sizes)), log2(max(sizes))
    ticks = _ticks(max(value for points in series.values() for _, value in points))
    bottom = _PLOT_TOP + _PLOT_HEIGHT

    def across(size: int) -> float:
        return round(_PLOT_LEFT + (log2(size) - low) / ((high - low) or 1.0) * _PLOT_WIDTH, 2)

    def up(value: float) -> float:
        return round(bottom - value / ticks[-1] * _PLOT_HEIGHT, 2)

    svg = element("svg", element("title", label), viewBox=f"0 0 {_WIDTH} {bottom + 40}", role="img", aria_label=label)
    for tick in ticks:
        append(
            svg, element("line", x1=_PLOT_LEFT, x2=_PLOT_LEFT + _PLOT_WIDTH, y1=up(tick), y2=up(tick), class_="grid")
        )
        append(svg, element("text", f"{tick:g}", x=_PLOT_LEFT - 8, y=up(tick) + 4, text_anchor="end", class_="tick"))
    append(svg, element("text", unit, x=_PLOT_LEFT - 8, y=12, text_anchor="end", class_="tick"))
    for power in _powers(low, high):
        at = across(1 << power)
        append(svg, element("text", size_text(1 << power), x=at, y=bottom + 18, text_anchor="middle", class_="tick"))
    append(
        svg,
        element(
            "text", "message size", x=_PLOT_LEFT + _PLOT_WIDTH / 2, y=bottom + 36, text_anchor="middle", class_="tick"
        ),
    )
    for number, (name, points) in enumerate(series.items()):
        style = number % len(_MARKS)
        drawn = element("g", class_=f"line{style}")
        path = " ".join(f"{across(size)},{up(value)}" for size, value in sorted(points))
        append(drawn, element("polyline", points=path))
        for size, value in points:
            said = element("title", f"{name}, {size_text(size)}: {value:.2f} {unit}")
            append(drawn, element("path", said, d=_mark(_MARKS[style], across(size), up(value))))
        y, x = _PLOT_TOP + 10 + number * 20, _PLOT_LEFT + _PLOT_WIDTH + 18
        append(drawn, element("path", d=_mark(_MARKS[style], x, y - 4)), element("text", name, x=x + 12, y=y))
        append(svg, drawn)
    return svg


def _mark(kind: str, x: float, y: float) -> str:
    shapes = {
        "circle": "m-4 0 a4 4 0 1 0 8 0 a4 4 0 1 0 -8 0",
        "square": "m-3.5 -3.5 h7 v7 h-7 z",
        "triangle": "m0 -4.5 l4.5 8 h-9 z",
        "diamond": "m0 -5 l5 5 l-5 5 l-5 -5 z",
        "cross": "m-4 -4 l8 8 m0 -8 l-8 8",
        "plus": "m-5 0 h10 m-5 -5 v10",
    }
    return f"M{x:g} {y:g} {shapes[kind]}"


def _sane(value: float) -> float:
    """The value limited to what can be drawn: a report from elsewhere may contain any number."""
    return min(max(value, 0.0), 1e15)


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


def topology(report: Report) -> Element | None:
    """How each pair of GPUs is connected; None if the report does not include these facts."""
    facts = report.facts
    if isinstance(facts, msgspec.UnsetType) or isinstance(facts.pairs, Missing) or not facts.pairs:
        return None
    cells: dict[Place, Element] = {}
    kinds = set()
    for pair in facts.pairs:
        word = way_of(pair)
        kind = "NV" if word.startswith("NV") else "none" if word == NOT_KNOWN else word
        kinds.add(kind)
        off = [known(pair.p2p_read), known(pair.p2p_write)]
        note = next((f" ({each})" for each in off if each not in (None, "OK")), "")
        for place in ((pair.a, pair.b), (pair.b, pair.a)):
            cells[place] = element("td", word + note, class_=f"way {kind.lower()}")
    indices = sorted({index for place in cells for index in place})
    legend = [words for kind, words in _MEANING_OF_LINK.items() if kind in kinds]
    if any("(" in "".join(cell.itertext()) for cell in cells.values()):
        legend.append("in brackets why peer-to-peer is off: CNS chipset, GNS GPU, TNS topology, DR registry key, NS, U")
    return section(
        "Topology",
        _square({index: f"GPU {index}" for index in indices}, cells, "How each two GPUs reach each other"),
        element("p", "; ".join(legend), class_="legend"),
        id_="topology",
    )


def bandwidths(measured: Measurements) -> list[Element]:
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


def _heat(measured: Measurements, matrix: RateMatrix, title: str, notes: Sequence[str]) -> Element:
    rates = matrix.rates
    best = max(rates.values())
    cells = {}
    for (a, b), rate in rates.items():
        share = rate / best if best > 0 else 0.0
        sign, heat = next((sign, heat) for sign, heat, least in _HEAT_STEPS if share >= least)
        mark = " h" if (a, b) in matrix.through_host else ""
        cells[a, b] = element("td", figure_text(rate), element("i", f" {sign}{mark}"), class_=heat)
    scale = "of the best here: ● from 90 %, ◕ 70 %, ◑ 50 %, ◔ 25 %, ○ less"
    legend = "; ".join((f"best {figure_text(best)}, worst {figure_text(min(rates.values()))} GB/s", scale, *notes))
    return element(
        "div",
        element("h3", title),
        _square({rank: rank_name(measured, rank) for rank in matrix.ranks}, cells, title),
        element("p", legend, class_="legend"),
        class_="part",
    )


def _square(names: Mapping[int, str], cells: Mapping[Place, Element], label: str) -> Element:
    head: list[Child] = [element("td"), *(element("th", name, scope="col") for name in names.values())]
    made = element("table", element("thead", element("tr", *head)), class_="matrix")
    body = element("tbody")
    for row, name in names.items():
        places: list[Child] = [element("th", name, scope="row")]
        for column in names:
            blank = element("td", _DIAGONAL if row == column else NOT_KNOWN, class_="none")
            places.append(cells.get((row, column), blank))
        append(body, element("tr", *places))
    append(made, body)
    return scroll(made, label)
