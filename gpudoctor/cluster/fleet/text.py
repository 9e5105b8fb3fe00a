"""The fleet report as text: nodes by verdict, kinds of faults, bad nodes, outliers, drift, unread documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from shlex import quote

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpudoctor.checks.core.finding import Status
from gpudoctor.cluster.fleet.judge import outlier_words
from gpudoctor.cluster.fleet.model import OUTLIER, WORST_FIRST, FigureRow, Fleet, FleetReading, NodeRow
from gpudoctor.cluster.fleet.reading import Refused
from gpudoctor.cluster.hostlist import hostlist
from gpudoctor.cluster.text_rows import TextRows
from gpudoctor.report.text import STYLES, laid_out, plain, status_word

# a large fleet may have hundreds of each; --json has all of them
MOST_ROWS = 30
MOST_TROUBLES = 10


def render_fleet_text(fleet: Fleet, *, width: int, color: bool, verbose: bool = False) -> str:
    """The report for `width` columns. The verdict is always a word too, never a colour alone."""
    return laid_out(_parts(fleet, verbose), width=width, color=color)


def _parts(fleet: Fleet, verbose: bool) -> Iterator[RenderableType]:
    most = 10**9 if verbose else MOST_ROWS
    yield from _head(fleet)
    yield Text("")
    yield _verdicts(fleet)
    yield from _titled("Faults by kind", _kinds(fleet, most))
    yield from _titled("Nodes that are not fit, or not known", _bad_nodes(fleet, most))
    yield from _titled("Worse than the fleet", _outliers(fleet, most))
    yield from _titled("Configuration against the majority", _drift(fleet, most))
    if fleet.against is not None:
        yield from _titled(f"Against {' '.join(fleet.against.sources)}", _trends(fleet, most))
    if verbose:
        yield from _titled("Measured", _figures(fleet.figures))
        yield from _titled("Every node", _nodes(fleet))
    yield from _titled("Notes", (plain(note) for note in (*fleet.notes, *_not_compared(fleet))))
    yield from _titled("Not read", _not_read(fleet, most))
    yield Text("")
    yield from _tail(fleet)


def _head(fleet: Fleet) -> Iterator[Text]:
    if fleet.simulated_words:
        yield plain(f"SIMULATED: {fleet.simulated_words}", "bold yellow")
    if fleet.reading.interrupted:
        yield plain(f"INTERRUPTED by {fleet.reading.interrupted}: what was read until then", "bold yellow")
    nodes, reports = fleet.counts.nodes, fleet.reading.reports
    parts = [f"gpudoctor {fleet.version} fleet", _count(nodes, "node"), _count(reports, "report")]
    yield plain(" | ".join(parts), "bold")
    if fleet.first_at and fleet.last_at:
        yield plain(f"Checked between {fleet.first_at} and {fleet.last_at}.")


def _verdicts(fleet: Fleet) -> RenderableType:
    table = TextRows(2)
    for word in WORST_FIRST:
        names = [row.name for row in fleet.nodes if row.verdict == word]
        if names:
            shown = "" if word == "pass" and len(names) == len(fleet.nodes) else shortened(hostlist(names))
            table.add_row(status_word(Status(word)), plain(f"{len(names):>6}"), plain(shown))
    if fleet.counts.unread:
        words = "report that cannot be read" if fleet.counts.unread == 1 else "reports that cannot be read"
        table.add_row(status_word(Status.UNKNOWN), plain(f"{fleet.counts.unread:>6}"), plain(words))
    return table


def _kinds(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    table = TextRows(3)
    for kind in fleet.faults[:most]:
        words = shortened(hostlist(kind.nodes)) + (f": {kind.example}" if kind.example else "")
        name = _count(len(kind.nodes), "node")
        table.add_row(status_word(Status(kind.status)), plain(kind.check, "bold"), plain(name), plain(words))
    if fleet.faults:
        yield table
    yield from _more(len(fleet.faults), most)


def _bad_nodes(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    bad = [row for word in ("fail", "unknown") for row in fleet.nodes if row.verdict == word]
    table = TextRows(2)
    for row in bad[:most]:
        table.add_row(status_word(Status(row.verdict)), plain(_called(row, fleet), "bold"), _what(row))
    if bad:
        yield table
    yield from _more(len(bad), most)


def _what(row: NodeRow) -> Text:
    faults = [f"{fault.check} {fault.headline}" for fault in row.faults]
    return plain("; ".join(faults) if faults and row.verdict == "fail" else row.reason)


def _called(row: NodeRow, fleet: Fleet) -> str:
    marks = fleet.marks_of(row)
    return f"{row.name} ({marks})" if marks else row.name


def _outliers(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    by_node = fleet.outliers_by_node
    table = TextRows(2)
    ordered = sorted(by_node.items(), key=lambda item: item[1][0].status)
    for name, found in ordered[:most]:
        first = found[0]
        sigmas = f", {first.sigmas:.0f} sigma" if first.sigmas is not None else ""
        more = f"; and in {_count(len(found) - 1, 'other figure')}" if len(found) > 1 else ""
        words = f"{outlier_words(first)}{sigmas}{more}"
        if first.status == "warn" and len(found) == 1:
            words += "; seen once: measure again"
        table.add_row(status_word(Status(first.status)), plain(name, "bold"), plain(words))
    if by_node:
        yield table
    yield from _more(len(by_node), most)


def _drift(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    table = TextRows(2)
    several = len({drift.kind for drift in fleet.drift}) > 1
    for drift in fleet.drift[:most]:
        others = [f"{other.value} on {shortened(hostlist(other.nodes), 200)}" for other in drift.others]
        if drift.majority is None:
            words = f"no majority of {drift.told}: {'; '.join(others)}"
        else:
            words = f"{'; '.join(others)}; {drift.majority} on {drift.agreeing} of {drift.told}"
        item = f"{drift.item} ({drift.kind})" if several else drift.item
        table.add_row(status_word(Status.WARN), plain(item, "bold"), plain(words))
    if fleet.drift:
        yield table
    yield from _more(len(fleet.drift), most)


def _trends(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    table = TextRows(2)
    for trend in fleet.trends[:most]:
        word = Text("worse" if trend.worse else "", style=STYLES[Status.WARN])
        table.add_row(word, plain(trend.node or "", "bold"), plain(trend.text))
    yield table if fleet.trends else plain("nothing changed")
    yield from _more(len(fleet.trends), most)


def _figures(rows: Sequence[FigureRow]) -> Iterator[RenderableType]:
    for row in rows:
        words = f"{row.figure}: {row.median:.4g} {row.unit} ({row.low:.4g} to {row.high:.4g}, MAD {row.mad:.2g})"
        why_not = f"; not compared: {row.why_not}" if row.why_not else ""
        yield plain(f"{words}, {row.kind}, {_count(row.nodes, 'node')}{why_not}")


def _nodes(fleet: Fleet) -> Iterator[RenderableType]:
    table = TextRows(2)
    for row in fleet.nodes:
        called = plain(_called(row, fleet), "bold")
        table.add_row(status_word(Status(row.verdict)), called, plain(f"{row.reason} [{row.place}]"))
    yield table


def _not_compared(fleet: Fleet) -> Iterator[str]:
    """Why figures were not compared, one line per kind of node."""
    few: dict[str, str] = {}
    for row in fleet.figures:
        if row.why_not and row.why_not.endswith(" nodes"):
            few.setdefault(row.kind, row.why_not)
    for kind, why_not in few.items():
        yield f"{kind}: figures are not compared: {why_not}"
    if not fleet.figures:
        yield "no figures of GPUs to compare: these reports are of level quick, or of CPU ranks"


def _not_read(fleet: Fleet, most: int) -> Iterator[RenderableType]:
    shown = most if most > MOST_ROWS else MOST_TROUBLES
    for reading in fleet.read:
        for what, refused in reading.refused:
            yield from _refused(what, refused, shown)
        yield from _counted(reading)


def _refused(what: str, refused: Sequence[Refused], most: int) -> Iterator[RenderableType]:
    if not refused:
        return
    yield plain(f"{len(refused)} {what}:")
    for each in refused[:most]:
        yield Padding(plain(f"{each.place}: {each.why}"), (0, 0, 0, 2))
    yield from _more(len(refused), most)


def _counted(reading: FleetReading) -> Iterator[RenderableType]:
    if reading.older:
        yield plain(
            f"{_count(reading.older, 'older report')} of nodes that have a newer one, which is the one that counts"
        )
    if reading.others:
        yield plain(
            f"{_count(reading.others, 'file')} not named like a report (*.json, *.jsonl, *.ndjson, .gz): not opened"
        )


def _tail(fleet: Fleet) -> Iterator[Text]:
    tally = ", ".join(f"{number} {word}" for word, number in fleet.counts.worst_first if number)
    words = fleet.verdict_words or f"{_count(fleet.counts.fail, 'node')} not fit to train on"
    status = Status(fleet.verdict)
    yield Text.assemble(status_word(status), "  ", plain(f"{words}  ({tally})", STYLES[status]))
    if fleet.counts.fail:
        named = next((kind.check for kind in fleet.faults if kind.status == "fail" and kind.check != OUTLIER), None)
        sources = " ".join(quote(source) if source != "-" else "REPORTS" for source in fleet.reading.sources)
        explain = f"gpudoctor explain {named}  |  " if named else ""
        yield plain(f"Next:  {explain}gpudoctor cluster report {sources} --exclude-expr  (for sbatch --exclude)")


def _titled(title: str, parts: Iterable[RenderableType]) -> Iterator[RenderableType]:
    inside = list(parts)
    if inside:
        yield Text("")
        yield Text(title, style="bold")
        yield from (Padding(part, (0, 0, 0, 2)) for part in inside)


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


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
