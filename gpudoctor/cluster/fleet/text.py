"""The fleet report as text: nodes by verdict, kinds of faults, bad nodes, outliers, drift, unread documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from shlex import quote
from typing import TypeVar

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpudoctor.checks.core.finding import Status
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
from gpudoctor.cluster.fleet.nodes import counted
from gpudoctor.cluster.fleet.runs import FleetRun, RunFinding
from gpudoctor.cluster.fleet.shapes import WORST_FIRST
from gpudoctor.report.text import STYLES, TextRows, UnwrappedLine, laid_out, plain, status_word
from gpudoctor.text.hostlist import hostlist

# a large fleet may have hundreds of each; --json has all of them
MOST_ROWS = 30
MOST_TROUBLES = 10
T = TypeVar("T")


def render_fleet_text(fleet: Fleet, *, width: int, color: bool, verbose: bool = False, expect: str = "") -> str:
    """The report for `width` columns. The verdict is always a word too, never a colour alone.

    `expect` is the hostlist of the nodes that should have reported, for the command that comes next.
    """
    return laid_out(_parts(fleet, verbose, expect), width=width, color=color)


def _parts(fleet: Fleet, verbose: bool, expect: str) -> Iterator[RenderableType]:
    most = 10**9 if verbose else MOST_ROWS
    yield from _head(fleet)
    yield Text("")
    yield _verdicts(fleet)
    yield from _titled("Faults by kind", _kinds(fleet, most))
    yield from _titled("Nodes that are not fit, or not known", _bad_nodes(fleet, most))
    yield from _titled("Worse than the fleet", _outliers(fleet, most))
    yield from _titled("Trainings", _runs(fleet, most))
    yield from _titled("Configuration against the majority", _drift(fleet, most))
    if fleet.against is not None:
        yield from _titled(f"Against {' '.join(fleet.against.sources)}", _trends(fleet, most))
    if verbose:
        yield from _titled("Measured", _figures(fleet.figures))
        yield from _titled("Every node", _nodes(fleet))
    yield from _titled("Notes", (plain(note) for note in (*fleet.notes, *_not_compared(fleet))))
    yield from _titled("Not read", _not_read(fleet, most))
    yield Text("")
    yield from _tail(fleet, expect)


def _head(fleet: Fleet) -> Iterator[Text]:
    if fleet.simulated_words:
        yield plain(f"SIMULATED: {fleet.simulated_words}", "bold yellow")
    if fleet.reading.interrupted:
        yield plain(f"INTERRUPTED by {fleet.reading.interrupted}: what was read until then", "bold yellow")
    nodes, reports = fleet.counts.nodes, fleet.reading.reports
    parts = [f"gpudoctor {fleet.version} fleet", counted(nodes, "node"), counted(reports, "report")]
    yield plain(" | ".join(parts), "bold")
    if fleet.first_at and fleet.last_at:
        yield plain(f"Checked between {fleet.first_at} and {fleet.last_at}.")


def _verdicts(fleet: Fleet) -> RenderableType:
    rows = []
    for word in WORST_FIRST:
        names = [row.name for row in fleet.nodes if row.verdict == word]
        if names:
            shown = "" if word == "pass" and len(names) == len(fleet.nodes) else shortened(hostlist(names))
            rows.append((status_word(Status(word)), plain(f"{len(names):>6}"), plain(shown)))
    if fleet.counts.unread:
        text = "report that cannot be read" if fleet.counts.unread == 1 else "reports that cannot be read"
        rows.append((status_word(Status.UNKNOWN), plain(f"{fleet.counts.unread:>6}"), plain(text)))
    return TextRows(rows)


def _kinds(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    def cells(kind: FaultKind) -> tuple[Text, ...]:
        text = shortened(hostlist(kind.nodes)) + (f": {kind.example}" if kind.example else "")
        status, nodes = status_word(Status(kind.status)), counted(len(kind.nodes), "node")
        return status, plain(kind.check, "bold"), plain(nodes), plain(text)

    return _rows(fleet.faults, most, cells)


def _bad_nodes(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    def cells(row: NodeRow) -> tuple[Text, ...]:
        faults = [f"{fault.check} {fault.headline}" for fault in row.faults]
        why = "; ".join(faults) if faults and row.verdict == "fail" else row.why
        return status_word(Status(row.verdict)), plain(_called(row, fleet), "bold"), plain(why)

    return _rows([row for word in ("fail", "unknown") for row in fleet.nodes if row.verdict == word], most, cells)


def _runs(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    def cells(found: tuple[FleetRun, RunFinding | None]) -> tuple[Text, ...]:
        run, problem = found
        if problem is None:
            step = f", {run.step_ms:.4g} ms a step" if run.step_ms is not None else ""
            ranks = counted(run.ranks, "rank") + (
                f" of {run.world_size}" if run.world_size not in (None, run.ranks) else ""
            )
            text = f"{' '.join(run.command)}: {ranks} on {shortened(hostlist(run.hosts))}{step}"
            return status_word(Status(run.verdict)), plain("training", "bold"), plain(text)
        return status_word(Status(problem.status)), plain(problem.id), plain(run_finding_words(problem))

    return _rows([(run, each) for run in fleet.runs for each in (None, *run.findings)], most, cells)


def _called(row: NodeRow, fleet: Fleet) -> str:
    marks = fleet.marks_of(row)
    return f"{row.name} ({marks})" if marks else row.name


def _outliers(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    def cells(found: list[Outlier]) -> tuple[Text, ...]:
        first = found[0]
        sigmas = f", {first.sigmas:.0f} sigma" if first.sigmas is not None else ""
        more = f"; and in {counted(len(found) - 1, 'other figure')}" if len(found) > 1 else ""
        text = f"{outlier_words(first)}{sigmas}{more}"
        if first.status == "warn" and len(found) == 1:
            text += "; seen once: measure again"
        return status_word(Status(first.status)), plain(first.node, "bold"), plain(text)

    return _rows(sorted(by_node_name(fleet.outliers).values(), key=lambda found: found[0].status), most, cells)


def _drift(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    several = len({drift.kind for drift in fleet.drift}) > 1

    def cells(drift: ConfigDrift) -> tuple[Text, ...]:
        others = "; ".join(f"{other.value} on {shortened(hostlist(other.nodes), 200)}" for other in drift.others)
        if drift.majority is None:
            text = f"no majority of {drift.reporting}: {others}"
        else:
            text = f"{others}; {drift.majority} on {drift.agreeing} of {drift.reporting}"
        item = f"{drift.item} ({drift.kind})" if several else drift.item
        return status_word(Status.WARN), plain(item, "bold"), plain(text)

    return _rows(fleet.drift, most, cells)


def _trends(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    def cells(trend: Trend) -> tuple[Text, ...]:
        word = Text("worse" if trend.worse else "", style=STYLES[Status.WARN])
        return word, plain(trend.node or "", "bold"), plain(trend.text)

    return _rows(fleet.trends, most, cells) if fleet.trends else iter([plain("nothing changed")])


def _figures(rows: Sequence[FigureRow]) -> Iterator[RenderableType]:
    for row in rows:
        text = f"{row.figure}: {row.median:.4g} {row.unit} ({row.low:.4g} to {row.high:.4g}, MAD {row.mad:.2g})"
        why_not = f"; not compared: {row.why_not}" if row.why_not else ""
        yield plain(f"{text}, {row.kind}, {counted(row.nodes, 'node')}{why_not}")


def _nodes(fleet: Fleet) -> Iterator[RenderableType]:
    def cells(row: NodeRow) -> tuple[Text, ...]:
        called = plain(_called(row, fleet), "bold")
        return status_word(Status(row.verdict)), called, plain(f"{row.why} [{row.place}]")

    yield TextRows(map(cells, fleet.nodes))


def _not_compared(fleet: Fleet) -> Iterator[str]:
    """Why figures were not compared, one line per kind of node."""
    few: dict[str, str] = {}
    for row in fleet.figures:
        if row.why_not and row.why_not.endswith(" nodes"):
            few.setdefault(row.kind, row.why_not)
    for kind, why_not in few.items():
        yield f"{kind}: figures are not compared: {why_not}"
    if not fleet.figures:
        yield "no figures of GPUs to compare: no report has any that were measured under load"


def _not_read(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    shown = most if most > MOST_ROWS else MOST_TROUBLES
    for reading in fleet.read:
        for what, refused in reading.refused:
            if refused:
                yield plain(f"{len(refused)} {what}:")
            for each in refused[:shown]:
                yield Padding(plain(f"{each.place}: {each.why}"), (0, 0, 0, 2))
            yield from _more(len(refused), shown)
        if reading.older:
            older = counted(reading.older, "older report")
            yield plain(f"{older} of nodes that have a newer one, which is the one that counts")
        if reading.others:
            others = counted(reading.others, "file")
            yield plain(f"{others} not named like a report (*.json, *.jsonl, *.ndjson, .gz): not opened")


def _tail(fleet: Fleet, expect: str) -> Iterator[RenderableType]:
    tally = ", ".join(f"{number} {word}" for word, number in fleet.counts.worst_first if number)
    text = fleet.verdict_words or f"{counted(fleet.counts.fail, 'node')} not fit to train on"
    status = Status(fleet.verdict)
    yield Text.assemble(status_word(status), "  ", plain(f"{text}  ({tally})", STYLES[status]))
    if fleet.counts.fail:
        named = next((kind.check for kind in fleet.faults if kind.status == "fail" and kind.check != OUTLIER), None)
        sources = " ".join(quote(source) if source != "-" else "REPORTS" for source in fleet.reading.sources)
        expected = f" --expect {quote(expect)}" if expect else ""
        yield plain("Next:")
        if named:
            yield UnwrappedLine(f"  gpudoctor explain {named}")
        yield UnwrappedLine(f"  gpudoctor cluster report {sources}{expected} --exclude-expr    # for sbatch --exclude")


def _titled(title: str, parts: Iterable[RenderableType]) -> Iterator[RenderableType]:
    inside = list(parts)
    if inside:
        yield Text("")
        yield Text(title, style="bold")
        yield from (Padding(part, (0, 0, 0, 2)) for part in inside)


def _rows(items: Sequence[T], most: int, cells: Callable[[T], Sequence[Text]]) -> Iterator[RenderableType]:
    """A row for each of the first items, and the number of the others."""
    if items:
        yield TextRows(map(cells, items[:most]))
    yield from _more(len(items), most)


def _more(count: int, shown: int) -> Iterator[Text]:
    if count > shown:
        yield Text(f"... and {count - shown} more: -v and --json have all", style="dim")


def shortened(names: str, most: int = 400) -> str:
    """A host list cut at a comma, with a mark if it was cut.

    >>> shortened("a1,b2,c3", 6)
    'a1,b2, ...'
    """
    if len(names) <= most:
        return names
    cut = names[:most].rpartition(",")[0] or names[:most]
    return f"{cut}, ..."
