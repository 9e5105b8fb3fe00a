"""What changed since an older set of reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpudoctor.cluster.fleet.figures import figure_words, less_is_better, place_words
from gpudoctor.cluster.fleet.model import WORST_FIRST, NodeRow, Trend
from gpudoctor.cluster.fleet.nodes import FleetNode
from gpudoctor.cluster.fleet.spreads import by_kind, changed
from gpudoctor.cluster.hostlist import hostlist
from gpudoctor.report.difference import FIGURE_CHANGE_MIN

_Rows = Mapping[str, NodeRow]


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
    gone, new = [name for name in before if name not in now], [name for name in now if name not in before]
    if gone:
        yield Trend("node", f"{len(gone)} without a report now: {hostlist(gone)}", worse=True)
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
    counted: dict[str, dict[str, int]] = {}
    for node in nodes:
        for item, value in node.newest.configuration:
            values = counted.setdefault(item, {})
            values[value] = values.get(value, 0) + 1
    return {item: max(values, key=lambda value: values[value]) for item, values in counted.items()}


def _figures(nodes: Sequence[FleetNode], older: Mapping[str, FleetNode]) -> Iterator[Trend]:
    by_node: dict[str, list[tuple[float, str]]] = {}
    for kind, figure, spread, found in changed(nodes, dict(older)):
        if abs(spread.median - 1) > FIGURE_CHANGE_MIN:
            text = f"{kind}: {figure_words(figure)} {spread.median - 1:+.0%} on the middle one of {spread.nodes} nodes"
            yield Trend("fleet", text, worse=(spread.median > 1) == less_is_better(figure))
        for each in found:
            where = place_words(each.place)
            words = figure_words(figure) + (f", {where}" if where and "GPU" not in figure_words(figure) else "")
            text = f"{words} {each.bad.value - 1:+.0%}, the fleet {spread.median - 1:+.0%}"
            by_node.setdefault(each.node.name, []).append((each.bad.similarity, text))
    for name, worse in by_node.items():
        _, text = min(worse)
        more = f"; and {len(worse) - 1} other figures" if len(worse) > 1 else ""
        yield Trend("figure", f"{text}{more}", name, worse=True)
