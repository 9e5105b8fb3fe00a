"""Compares every figure across all nodes of the same kind, and the fleet with an older set of reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gpudoctor.cluster.fleet.figures import (
    Figure,
    MeasuredGpus,
    figure_of,
    figure_words,
    less_is_better,
    unit_of,
    with_gpus,
)
from gpudoctor.cluster.fleet.model import FigureRow, NodeRow, Outlier, Trend
from gpudoctor.cluster.fleet.nodes import FleetNode
from gpudoctor.cluster.fleet.shapes import WORST_FIRST
from gpudoctor.cluster.outliers import FAIL_SIMILARITY, MIN_NODES, Bad, FigureSpread, spread_of
from gpudoctor.report.two_reports import FIGURE_CHANGE_MIN
from gpudoctor.text.grouped import grouped
from gpudoctor.text.hostlist import hostlist

# one bad figure alone would blame a healthy node now and then: 1 of 5 repeats was 24 % off on a healthy machine
FIGURES_TO_FAIL = 2
_Column = tuple[list[float], list[int], list[MeasuredGpus]]
_Rows = Mapping[str, NodeRow]


class _Worse(msgspec.Struct, frozen=True):
    node: FleetNode
    figure: Figure
    gpus: MeasuredGpus
    bad: Bad
    criterion: float


def compare(nodes: Sequence[FleetNode]) -> tuple[tuple[FigureRow, ...], tuple[Outlier, ...], list[str]]:
    """Compare the newest reports' figures among nodes of a kind: a row for each, outliers worst first, and notes."""
    rows: list[FigureRow] = []
    found: list[_Worse] = []
    notes: list[str] = []
    judged = _judged(nodes)
    for kind, group in by_kind(nodes).items():
        figures = _columns(group, [node.newest.values for node in group])
        for figure, (values, owners, gpus_of) in figures:
            spread = spread_of(values, owners, less_is_better(figure), judged)
            rows.append(_row(kind, figure, spread))
            if spread.split:
                notes.append(_split_words(kind, figure, spread, group))
                continue
            found += [
                _Worse(group[bad.node], figure, gpus_of[bad.position], bad, spread.criterion) for bad in spread.bad
            ]
    found.sort(key=lambda each: each.bad.similarity)
    fails = _fails(found)
    outliers = tuple(_outlier(each, number in fails) for number, each in enumerate(found))
    return tuple(rows), outliers, notes


def by_kind(nodes: Sequence[FleetNode]) -> dict[str, list[FleetNode]]:
    return grouped((node.newest.kind, node) for node in nodes)


def _columns(nodes: Sequence[FleetNode], arrays: Sequence[Sequence[float]]) -> Iterator[tuple[Figure, _Column]]:
    """Each figure with its values, and the node number and GPUs of each value."""
    # equal layouts are one object: the recorder stores equal values once
    layouts = grouped((id(node.newest.entries), number) for number, node in enumerate(nodes) if node.newest.entries)
    parts: dict[Figure, list[tuple[tuple[float, ...], list[int], MeasuredGpus]]] = {}
    for numbers in layouts.values():
        entries = nodes[numbers[0]].newest.entries
        columns = zip(*(arrays[number] for number in numbers), strict=True)
        for entry, column in zip(entries, columns, strict=True):
            figure, gpus = figure_of(entry)
            parts.setdefault(figure, []).append((column, numbers, gpus))
    for figure in list(parts):
        values: list[float] = []
        owners: list[int] = []
        gpus_of: list[MeasuredGpus] = []
        for column, numbers, gpus in parts.pop(figure):
            values += column
            owners += numbers
            gpus_of += [gpus] * len(numbers)
        yield figure, (values, owners, gpus_of)


def _judged(nodes: Sequence[FleetNode]) -> int:
    """The number of values that are compared."""
    kinds = by_kind(nodes).values()
    return sum(len(node.newest.values) for group in kinds if len(group) >= MIN_NODES for node in group)


def _fails(found: Sequence[_Worse]) -> set[int]:
    """The indexes of those that fail: 10 % worse, and confirmed by a second figure or an older report."""
    severe = Counter(each.node.name for each in found if each.bad.status == "fail")
    return {
        number
        for number, each in enumerate(found)
        if each.bad.status == "fail" and (severe[each.node.name] >= FIGURES_TO_FAIL or _seen_before(each))
    }


def _seen_before(each: _Worse) -> bool:
    """Whether the newest older report that measured the same figure confirms it."""
    for record in each.node.records[1:]:
        for entry, value in zip(record.entries, record.values, strict=True):
            if figure_of(entry) == (each.figure, each.gpus):
                better, worse = (each.criterion, value) if less_is_better(each.figure) else (value, each.criterion)
                return worse > 0 and better / worse <= FAIL_SIMILARITY
    return False


def _outlier(each: _Worse, fails: bool) -> Outlier:
    return Outlier(
        node=each.node.name,
        status="fail" if fails else "warn",
        figure=figure_words(each.figure),
        gpus=each.gpus,
        value=each.bad.value,
        unit=unit_of(each.figure),
        criterion=each.criterion,
        similarity=round(each.bad.similarity, 4),
        sigmas=None if each.bad.sigmas is None else round(each.bad.sigmas, 1),
        kind=each.node.newest.kind,
    )


def _row(kind: str, figure: Figure, spread: FigureSpread) -> FigureRow:
    why_not = spread.why_not
    if spread.split:
        why_not = f"{len({bad.node for bad in spread.bad})} of {spread.nodes} nodes are lower: two kinds of nodes?"
    return FigureRow(
        *(kind, figure_words(figure), unit_of(figure), less_is_better(figure), spread.nodes, spread.samples),
        *(spread.median, spread.mad, spread.criterion, spread.low, spread.high),
        outliers=0 if why_not else len(spread.bad),
        why_not=why_not,
    )


def _split_words(kind: str, figure: Figure, spread: FigureSpread, group: Sequence[FleetNode]) -> str:
    worse = [group[number].name for number in sorted({bad.node for bad in spread.bad})]
    criterion = f"{spread.criterion:.4g} {unit_of(figure)}"
    return (
        f"{kind}: {figure_words(figure)}: {len(worse)} of {spread.nodes} nodes are far worse than {criterion}: "
        f"two kinds of nodes, or much noise; none is called bad: {hostlist(worse)}"
    )


# What changed since an older set of reports.


def trends(
    nodes: Sequence[FleetNode], rows: Sequence[NodeRow], old_nodes: Sequence[FleetNode], old_rows: Sequence[NodeRow]
) -> tuple[Trend, ...]:
    """The changes, worse ones first: verdicts, faults, nodes added or missing, configuration, figures.

    A node's figure is named if its change from the older value is worse than the fleet's, by the rules in `outliers`.
    A figure of a whole kind of node is named if its median changed by 5 %.
    """
    now, before = {row.name: row for row in rows}, {row.name: row for row in old_rows}
    older = {node.name: node for node in old_nodes}
    found = [*_verdicts(now, before), *_faults(now, before), *_nodes(now, before)]
    found += [*_configuration(nodes, old_nodes), *_figures(nodes, older)]
    return tuple(sorted(found, key=lambda trend: not trend.worse))


def _verdicts(now: _Rows, before: _Rows) -> Iterator[Trend]:
    for name, row in now.items():
        old = before.get(name)
        if old is not None and old.verdict != row.verdict:
            worse = WORST_FIRST.index(row.verdict) < WORST_FIRST.index(old.verdict)
            yield Trend("verdict", f"{old.verdict} -> {row.verdict}", name, worse)


def _faults(now: _Rows, before: _Rows) -> Iterator[Trend]:
    for name, row in now.items():
        old = before.get(name)
        if old is None:
            continue
        had = {fault.check for fault in old.faults}
        has = {fault.check: fault.headline for fault in row.faults}
        for check, headline in has.items():
            if check not in had:
                yield Trend("fault", f"new: {check} {headline}", name, worse=True)
        for check in sorted(had - set(has)):
            seen = "not looked at again" if row.verdict == "unknown" else "gone"
            yield Trend("fault", f"{seen}: {check}", name)


def _nodes(now: _Rows, before: _Rows) -> Iterator[Trend]:
    missing, new = [name for name in before if name not in now], [name for name in now if name not in before]
    if missing:
        yield Trend("node", f"{len(missing)} without a report now: {hostlist(missing)}", worse=True)
    if new:
        yield Trend("node", f"{len(new)} new: {hostlist(new)}")


def _configuration(nodes: Sequence[FleetNode], old_nodes: Sequence[FleetNode]) -> Iterator[Trend]:
    """Configuration items whose most frequent value changed for a kind of node."""
    old_kinds = by_kind(old_nodes)
    for kind, group in by_kind(nodes).items():
        before = _most(old_kinds.get(kind, []))
        for item, value in _most(group).items():
            if before.get(item, value) != value:
                yield Trend("configuration", f"{kind}: {item} {before[item]} -> {value} on most nodes")


def _most(nodes: Sequence[FleetNode]) -> dict[str, str]:
    counted: dict[str, Counter[str]] = {}
    for node in nodes:
        for item, value in node.newest.configuration:
            counted.setdefault(item, Counter())[value] += 1
    return {item: values.most_common(1)[0][0] for item, values in counted.items()}


def _figures(nodes: Sequence[FleetNode], older: Mapping[str, FleetNode]) -> Iterator[Trend]:
    """By new / old of each figure: what changed for a whole kind of nodes, and outliers among these changes."""
    pairs = [(node, older[node.name]) for node in nodes if node.name in older]
    same = [node for node, old in pairs if node.newest.kind == old.newest.kind and node.newest.entries]
    judged = _judged(same)
    by_node: dict[str, list[tuple[float, str]]] = {}
    for kind, group in by_kind(same).items():
        retained: list[FleetNode] = []
        arrays: list[list[float]] = []
        for node in group:
            new, old = node.newest, older[node.name].newest
            if new.entries is old.entries and all(value > 0 for value in old.values):
                retained.append(node)
                arrays.append([now / before for now, before in zip(new.values, old.values, strict=True)])
        for figure, (values, owners, gpus_of) in _columns(retained, arrays):
            spread = spread_of(values, owners, less_is_better(figure), judged)
            message, change = figure_words(figure), f"{spread.median - 1:+.0%}"
            if abs(spread.median - 1) > FIGURE_CHANGE_MIN:
                text = f"{kind}: {message} {change} on the middle one of {spread.nodes} nodes"
                yield Trend("fleet", text, worse=(spread.median > 1) == less_is_better(figure))
            for bad in () if spread.split else spread.bad:
                text = f"{with_gpus(message, gpus_of[bad.position])} {bad.value - 1:+.0%}, the fleet {change}"
                by_node.setdefault(retained[bad.node].name, []).append((bad.similarity, text))
    for name, worse in by_node.items():
        _, text = min(worse)
        more = f"; and {len(worse) - 1} other figures" if len(worse) > 1 else ""
        yield Trend("figure", f"{text}{more}", name, worse=True)
