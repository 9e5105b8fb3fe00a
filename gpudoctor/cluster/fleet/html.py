"""The fleet report as one self-contained HTML page, with all text from reports escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from gpudoctor.cluster.fleet.judge import outlier_words, run_finding_words
from gpudoctor.cluster.fleet.model import (
    OUTLIER,
    ConfigDrift,
    FaultKind,
    FigureRow,
    Fleet,
    NodeRow,
    Outlier,
    Trend,
    by_node_name,
)
from gpudoctor.cluster.fleet.runs import FleetRun, RunFinding
from gpudoctor.cluster.fleet.shapes import WORST_FIRST
from gpudoctor.report.html.parts import (
    Cell,
    Chip,
    Code,
    Command,
    Fold,
    Items,
    Page,
    Paragraph,
    Part,
    RangeMark,
    Rows,
    Section,
    Short,
    Strong,
    Unfold,
    pairs,
    section,
)
from gpudoctor.report.html.render import render_page
from gpudoctor.text.grouped import grouped
from gpudoctor.text.hostlist import hostlist
from gpudoctor.text.units import counted

# a browser must still open the page of ten thousand nodes; --json has all of them
MOST_ROWS = 1000
T = TypeVar("T")


def render_fleet_html(fleet: Fleet) -> str:
    """The page: without scripts or external resources, and byte for byte the same for the same fleet."""
    counts = fleet.counts
    simulated = " (SIMULATED)" if fleet.simulated else ""
    page = Page(
        title=f"{fleet.verdict.upper()}{simulated} {counts.nodes} nodes: gpudoctor fleet",
        kicker=f"gpudoctor {fleet.version} fleet",
        heading=counted(counts.nodes, "node"),
        status=fleet.verdict,
        word=fleet.verdict.upper(),
        verdict=fleet.verdict_words or f"{counts.fail} not fit to train on",
        where=f"checked between {fleet.first_at} and {fleet.last_at}" if fleet.first_at and fleet.last_at else "",
        counts=tuple(("unknown" if word == "unread" else word, word, number) for word, number in counts.worst_first),
        banners=tuple(_banners(fleet)),
        do=_do(fleet),
        evidence=(
            *_kinds(fleet),
            *section("Nodes that are not fit, or not known", _nodes(fleet, ("fail", "unknown")), "bad"),
            *_outliers(fleet),
            *_runs(fleet),
            *_drift(fleet),
            *_trends(fleet),
            *_not_read(fleet),
        ),
        rest=(
            *_figures(fleet),
            *section("Nodes that work", _nodes(fleet, ("warn", "pass")), "good"),
            *_reading(fleet),
        ),
    )
    return render_page(page)


def _banners(fleet: Fleet) -> Iterator[tuple[str, str, str]]:
    if fleet.simulated_words:
        yield "SIMULATED", fleet.simulated_words, "loud"
    if fleet.reading.interrupted:
        yield "INTERRUPTED", f"by {fleet.reading.interrupted}: what was read until then", "loud"
    yield from (("Note", note, "quiet") for note in fleet.notes)


def _do(fleet: Fleet) -> tuple[Section, ...]:
    """Which nodes to take out, and where each kind of fault is explained."""
    failed = [row.name for row in fleet.nodes if row.verdict == "fail"]
    unknown = [row.name for row in fleet.nodes if row.verdict == "unknown"]
    steps: list[Cell] = [("Take out of the queue:", Code(hostlist(failed)))] if failed else []
    steps += [("Check again, since no verdict is known:", Code(hostlist(unknown)))] if unknown else []
    kinds = [kind.check for kind in fleet.faults if kind.status == "fail" and kind.check != OUTLIER]
    steps += [("What helps against each fault:", *(Command(f"gpudoctor explain {kind}") for kind in kinds))] * bool(
        kinds
    )
    return section("What to do", (Items(tuple(steps), "steps"),) if steps else (), "do")


def _kinds(fleet: Fleet) -> tuple[Section, ...]:
    def cells(kind: FaultKind) -> tuple[Cell, ...]:
        return Chip(kind.status), Code(kind.check), str(len(kind.nodes)), hostlist(kind.nodes), kind.example or ""

    head = ("", "check", "nodes", "which", "found on one of them")
    return section("Faults by kind", _rows(head, fleet.faults, cells), "kinds")


def _runs(fleet: Fleet) -> tuple[Section, ...]:
    def cells(found: tuple[FleetRun, RunFinding | None]) -> tuple[Cell, ...]:
        run, problem = found
        if problem is None:
            step = "" if run.step_ms is None else f"{run.step_ms:.4g} ms a step"
            return Chip(run.verdict), Code(" ".join(run.command)), f"{run.ranks} ranks, {hostlist(run.hosts)}", step
        return Chip(problem.status), Code(problem.id), "", run_finding_words(problem)

    rows = [(run, each) for run in fleet.runs for each in (None, *run.findings)]
    return section("Trainings", _rows(("", "command, finding", "on", "what"), rows, cells), "trainings")


def _nodes(fleet: Fleet, verdicts: Sequence[str]) -> tuple[Part, ...]:
    ordered = [row for word in WORST_FIRST if word in verdicts for row in fleet.nodes if row.verdict == word]
    return _rows(("", "node", "why", "level", "checked"), ordered, lambda row: _node(row, fleet))


def _node(row: NodeRow, fleet: Fleet) -> tuple[Cell, ...]:
    faults = tuple(f"{fault.check}: {fault.headline}" for fault in row.faults)
    why = Items(faults) if faults and row.verdict == "fail" else row.why
    name = (Strong(row.name), fleet.marks_of(row))
    return Chip(row.verdict), name, why, row.level, Short(row.started_at or "not known", row.place)


def _outliers(fleet: Fleet) -> tuple[Section, ...]:
    """A row for each node with its worst figure; its other figures are folded under it."""
    head = ("", "node", "figure", "value", "fleet", "worse", "sigma")
    rows = _rows(head, list(by_node_name(fleet.outliers).values()), _outlier)
    return section("Worse than the fleet", rows, "outliers")


def _outlier(found: Sequence[Outlier]) -> tuple[Cell, ...]:
    first, others = found[0], tuple(outlier_words(outlier) for outlier in found[1:])
    figure = outlier_words(first).partition(": ")[0]
    return (
        Chip(first.status),
        Strong(first.node),
        Unfold(f"{figure}, and {len(others)} more", others) if others else figure,
        f"{first.value:.4g} {first.unit}",
        f"{first.criterion:.4g}",
        f"{100 * (1 - first.similarity):.0f} %",
        "" if first.sigmas is None else f"{first.sigmas:.0f}",
    )


def _drift(fleet: Fleet) -> tuple[Section, ...]:
    def cells(drift: ConfigDrift) -> tuple[Cell, ...]:
        majority = (
            "no majority" if drift.majority is None else f"{drift.majority} on {drift.agreeing} of {drift.reporting}"
        )
        return drift.item, drift.kind, majority, Items(tuple(f"{o.value}: {hostlist(o.nodes)}" for o in drift.others))

    shown = _rows(("item", "nodes", "majority", "others"), fleet.drift, cells)
    return section("Configuration against the majority", shown, "drift")


def _trends(fleet: Fleet) -> tuple[Section, ...]:
    def cells(trend: Trend) -> tuple[Cell, ...]:
        return "worse" if trend.worse else "", Strong(trend.node) if trend.node else "", trend.text

    if fleet.against is None:
        return ()
    shown = _rows(("", "node", "what"), fleet.trends, cells) or (Paragraph("nothing changed"),)
    return section(f"Against {' '.join(fleet.against.sources)}", shown, "against")


def _figures(fleet: Fleet) -> tuple[Section, ...]:
    """Figures with outliers first; the others are folded."""
    by_figure = grouped(((outlier.kind, outlier.figure), outlier.value) for outlier in fleet.outliers)
    named = _figure_rows([row for row in fleet.figures if row.outliers], by_figure)
    others = [row for row in fleet.figures if not row.outliers]
    folded = _figure_rows(others, by_figure)
    parts = (*named, *((Fold(f"{len(others)} figures without outliers", folded),) if others else ()))
    return section("Measured", parts, "measured", opened=bool(named))


def _figure_rows(rows: Sequence[FigureRow], outliers: dict[tuple[str, str], list[float]]) -> tuple[Part, ...]:
    several = len({row.kind for row in rows}) > 1

    def cells(row: FigureRow) -> tuple[Cell, ...]:
        return (
            f"{row.figure} ({row.kind})" if several else row.figure,
            str(row.nodes),
            f"{row.median:.4g} {row.unit}",
            f"{row.low:.4g} to {row.high:.4g}",
            row.why_not or _spread(row, outliers.get((row.kind, row.figure), [])),
        )

    return _rows(("figure", "nodes", "median", "range", "spread"), rows, cells)


def _spread(row: FigureRow, outliers: Sequence[float]) -> RangeMark:
    room = row.high - row.low

    def across(value: float) -> float:
        return min(max((value - row.low) / room, 0.0), 1.0) if room > 0 else 0.5

    label = f"{row.figure}: {len(outliers)} outliers"
    return RangeMark(label, across(row.median), tuple(across(value) for value in outliers[:MOST_ROWS]))


def _not_read(fleet: Fleet) -> tuple[Section, ...]:
    parts = []
    for what, refused in (group for reading in fleet.read for group in reading.refused if group[1]):
        body = _rows(("where", "why"), refused, lambda each: (each.place, each.why))
        parts.append(Fold(f"{len(refused)} {what}", body, opened=True))
    return section("Not read", parts, "unread")


def _reading(fleet: Fleet) -> tuple[Section, ...]:
    reading = fleet.reading
    about = pairs(
        ("Read from", " ".join(reading.sources)),
        ("Files", str(reading.files)),
        ("Reports", str(reading.reports)),
        ("Older reports of a node", str(reading.older)),
        ("Files not opened", str(reading.others)),
    )
    return section("This set", (about,), "run")


def _rows(head: tuple[str, ...], items: Sequence[T], cells: Callable[[T], tuple[Cell, ...]]) -> tuple[Part, ...]:
    """A table of the first items and the number of those left out; nothing if there are no items."""
    if not items:
        return ()
    shown = Rows(head, tuple(map(cells, items[:MOST_ROWS])), wraps=True)
    if len(items) <= MOST_ROWS:
        return (shown,)
    return shown, Paragraph(f"... and {len(items) - MOST_ROWS} more: --json has all", "legend")
