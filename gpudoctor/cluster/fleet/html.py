"""The fleet report as one self-contained HTML page, with all text from reports escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar
from xml.etree.ElementTree import Element

from gpudoctor.checks.core.finding import Status
from gpudoctor.cluster.fleet.judge import outlier_words
from gpudoctor.cluster.fleet.model import (
    WORST_FIRST,
    ConfigDrift,
    FaultKind,
    FigureRow,
    Fleet,
    FleetReading,
    NodeRow,
    Outlier,
    Trend,
)
from gpudoctor.hostlist import hostlist
from gpudoctor.report.html.elements import Child, append, banner, chip, element, page, section, table, tally

# a browser must still open the page of ten thousand nodes; --json has all of them
MOST_ROWS = 1000
T = TypeVar("T")
_STRIP_WIDTH, _STRIP_HEIGHT = 220, 18
# here cells contain sentences, which wrap; the tables of a node's report do not
_CSS = """
.fleet { width: 100%; }
.fleet td, .fleet th { vertical-align: top; }
.fleet td { white-space: normal; overflow-wrap: anywhere; }
.fleet td:first-of-type { white-space: nowrap; }
.fleet ul { list-style: none; }
.fleet summary { padding: 0; }
.fleet time, .numbers td:not(:last-child) { white-space: nowrap; }
.fleet svg { width: 220px; min-width: 0; }
"""


def render_fleet_html(fleet: Fleet) -> str:
    """The page: without scripts or external resources, and byte for byte the same for the same fleet."""
    simulated = " (SIMULATED)" if fleet.simulated else ""
    title = f"{fleet.verdict.upper()}{simulated} {fleet.counts.nodes} nodes: gpudoctor fleet"
    return page(title, *_body(fleet), css=_CSS)


def _body(fleet: Fleet) -> Iterator[Child]:
    yield element("header", *_header(fleet), class_=f"verdict {fleet.verdict}")
    parts = (
        *_banners(fleet),
        _kinds(fleet),
        _nodes("Nodes that are not fit, or not known", fleet, ("fail", "unknown")),
        _outliers(fleet),
        _drift(fleet),
        _trends(fleet),
        _figures(fleet),
        _nodes("Nodes that work", fleet, ("warn", "pass"), folded=True),
        _not_read(fleet),
    )
    main = element("main")
    for part in parts:
        append(main, part)
    yield main
    yield element("footer", _reading(fleet.reading))


def _header(fleet: Fleet) -> Iterator[Child]:
    counts = fleet.counts
    yield element("p", f"gpudoctor {fleet.version} fleet", class_="kicker")
    yield element("h1", f"{counts.nodes} node{'' if counts.nodes == 1 else 's'}")
    words = fleet.verdict_words or f"{counts.fail} not fit to train on"
    yield element("p", element("strong", fleet.verdict.upper(), class_="word"), f" {words}")
    if fleet.first_at and fleet.last_at:
        yield element("p", f"checked between {fleet.first_at} and {fleet.last_at}", class_="node")
    yield tally(("unknown" if word == "unread" else word, word, number) for word, number in counts.worst_first)


def _banners(fleet: Fleet) -> Iterator[Element]:
    if fleet.simulated_words:
        yield banner("SIMULATED", fleet.simulated_words, "loud")
    if fleet.reading.interrupted:
        yield banner("INTERRUPTED", f"by {fleet.reading.interrupted}: what was read until then", "loud")
    for note in fleet.notes:
        yield banner("Note", note, "quiet")


def _kinds(fleet: Fleet) -> Element | None:
    def cells(kind: FaultKind) -> tuple[Child, ...]:
        code = element("code", kind.check)
        return chip(Status(kind.status)), code, str(len(kind.nodes)), hostlist(kind.nodes), kind.example

    head = ("", "check", "nodes", "which", "on the first")
    return section("Faults by kind", *_rows(head, fleet.faults, cells), id_="kinds")


def _nodes(title: str, fleet: Fleet, verdicts: Sequence[str], *, folded: bool = False) -> Element | None:
    ordered = [row for word in WORST_FIRST if word in verdicts for row in fleet.nodes if row.verdict == word]
    shown = _rows(("", "node", "why", "level", "checked"), ordered, lambda row: _node(row, fleet))
    if not (folded and ordered):
        return section(title, *shown, id_="bad")
    summary = element("summary", element("b", f"{len(ordered)} nodes"))
    return section(title, element("details", summary, *shown, class_="domain"), id_="good")


def _node(row: NodeRow, fleet: Fleet) -> tuple[Child, ...]:
    marks = fleet.marks_of(row)
    name = element("span", element("b", row.name), f" {marks}" if marks else None)
    faults = [f"{fault.check}: {fault.headline}" for fault in row.faults]
    why: Child = row.reason
    if faults and row.verdict == "fail":
        why = element("ul", *(element("li", fault) for fault in faults))
    return chip(Status(row.verdict)), name, why, row.level, element("time", row.started_at or "not known")


def _outliers(fleet: Fleet) -> Element | None:
    """A row for each node with its worst figure; its other figures are folded under it."""
    head = ("", "node", "figure", "value", "fleet", "worse", "sigma")
    shown = _rows(head, list(fleet.outliers_by_node.values()), _outlier)
    return section("Worse than the fleet", *shown, id_="outliers")


def _outlier(found: Sequence[Outlier]) -> tuple[Child, ...]:
    first, others = found[0], [outlier_words(outlier) for outlier in found[1:]]
    figure: Child = outlier_words(first).partition(": ")[0]
    if others:
        summary = element("summary", f"{figure}, and {len(others)} more")
        figure = element("details", summary, element("ul", *(element("li", words) for words in others)))
    return (
        chip(Status(first.status)),
        element("b", first.node),
        figure,
        f"{first.value:.4g} {first.unit}",
        f"{first.criterion:.4g}",
        f"{100 * (1 - first.similarity):.0f} %",
        "" if first.sigmas is None else f"{first.sigmas:.0f}",
    )


def _drift(fleet: Fleet) -> Element | None:
    def cells(drift: ConfigDrift) -> tuple[Child, ...]:
        majority = "no majority" if drift.majority is None else f"{drift.majority} on {drift.agreeing} of {drift.told}"
        others = (element("li", f"{other.value}: ", hostlist(other.nodes)) for other in drift.others)
        return drift.item, drift.kind, majority, element("ul", *others)

    shown = _rows(("item", "nodes", "majority", "others"), fleet.drift, cells)
    return section("Configuration against the majority", *shown, id_="drift")


def _trends(fleet: Fleet) -> Element | None:
    def cells(trend: Trend) -> tuple[Child, ...]:
        return "worse" if trend.worse else "", element("b", trend.node) if trend.node else "", trend.text

    if fleet.against is None:
        return None
    shown = _rows(("", "node", "what"), fleet.trends, cells) or (element("p", "nothing changed"),)
    return section(f"Against {' '.join(fleet.against.sources)}", *shown, id_="against")


def _figures(fleet: Fleet) -> Element | None:
    """Figures with outliers first; the others are folded."""
    named = [row for row in fleet.figures if row.outliers]
    others = [row for row in fleet.figures if not row.outliers]
    by_figure: dict[tuple[str, str], list[float]] = {}
    for outlier in fleet.outliers:
        by_figure.setdefault((outlier.kind, outlier.figure), []).append(outlier.value)
    parts: list[Child] = []
    if named:
        parts.append(_figure_table(named, by_figure))
    if others:
        summary = element("summary", element("b", f"{len(others)} figures without outliers"))
        parts.append(element("details", summary, _figure_table(others, by_figure), class_="domain"))
    return section("Measured", *parts, id_="measured")


def _figure_table(rows: Sequence[FigureRow], outliers: dict[tuple[str, str], list[float]]) -> Element:
    several = len({row.kind for row in rows}) > 1
    shown = (
        (
            f"{row.figure} ({row.kind})" if several else row.figure,
            str(row.nodes),
            f"{row.median:.4g} {row.unit}",
            f"{row.low:.4g} to {row.high:.4g}",
            row.why_not or _strip(row, outliers.get((row.kind, row.figure), [])),
        )
        for row in rows[:MOST_ROWS]
    )
    return table(("figure", "nodes", "median", "range", "spread"), shown, class_="figures fleet numbers")


def _strip(row: FigureRow, outliers: Sequence[float]) -> Element:
    """The range of the values: a line from lowest to highest, a tick at the median, a mark for each outlier."""
    room, middle = row.high - row.low, _STRIP_HEIGHT / 2

    def across(value: float) -> float:
        return round(6 + (value - row.low) / room * (_STRIP_WIDTH - 12), 1) if room > 0 else _STRIP_WIDTH / 2

    label = f"{row.figure}: {len(outliers)} outliers"
    svg = element(
        "svg",
        element("title", label),
        viewBox=f"0 0 {_STRIP_WIDTH} {_STRIP_HEIGHT}",
        role="img",
        aria_label=label,
    )
    append(svg, element("line", x1=6, x2=_STRIP_WIDTH - 6, y1=middle, y2=middle, stroke="currentColor", opacity=0.4))
    at = across(row.median)
    append(svg, element("line", x1=at, x2=at, y1=2, y2=_STRIP_HEIGHT - 2, stroke="currentColor", stroke_width=2))
    for value in outliers[:MOST_ROWS]:
        append(svg, element("circle", cx=across(value), cy=middle, r=4, style="fill:var(--fail)"))
    return svg


def _not_read(fleet: Fleet) -> Element | None:
    parts = []
    for what, refused in (group for reading in fleet.read for group in reading.refused if group[1]):
        summary = element("summary", element("b", f"{len(refused)} {what}"))
        body = _rows(("where", "why"), refused, lambda each: (each.place, each.why))
        parts.append(element("details", summary, *body, class_="domain", open=True))
    return section("Not read", *parts, id_="unread")


def _reading(reading: FleetReading) -> Element | None:
    said = (
        ("Read from", " ".join(reading.sources)),
        ("Files", str(reading.files)),
        ("Reports", str(reading.reports)),
        ("Older reports of a node", str(reading.older)),
        ("Files not opened", str(reading.others)),
    )
    rows: list[Child] = []
    for name, value in said:
        rows += [element("dt", name), element("dd", value)]
    return section("This set", element("dl", *rows), id_="run")


def _rows(head: Sequence[str], items: Sequence[T], cells: Callable[[T], Sequence[Child]]) -> tuple[Element, ...]:
    """A table of the first items and the number of those left out; nothing if there are no items."""
    if not items:
        return ()
    shown = table(head, map(cells, items[:MOST_ROWS]), class_="figures fleet")
    if len(items) <= MOST_ROWS:
        return (shown,)
    return shown, element("p", f"... and {len(items) - MOST_ROWS} more: --json has all", class_="legend")
