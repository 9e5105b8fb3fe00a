"""The report as text: one line per domain, then each problem, then what to run next; and rows that fit any width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from gpudoctor.checks.core.finding import Finding, Status, worst
from gpudoctor.checks.core.registry import LEVELS
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import NODE, grouped_label
from gpudoctor.checks.reported.failures import NO_STATEMENT
from gpudoctor.report.model import Report, alarms, is_above, node_words, profile_words, suppressed_in
from gpudoctor.report.text_figures import figure_lines
from gpudoctor.report.wording import (
    PARTLY,
    CommandText,
    Explained,
    alike,
    also_paste,
    block_rows,
    domain_words,
    explained_next,
    have_one_reason,
    is_no_gpu_node,
    joined_problems,
    label_of,
    lacking_rows,
    same_run,
    verdict_word,
    verdict_words,
)
from gpudoctor.text.output import printable
from gpudoctor.text.units import counted

NARROWEST = 40
STYLES = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.SKIP: "dim",
    Status.UNKNOWN: "bold magenta",
}
PARTLY_STYLE = "bold cyan"  # as loud as a verdict, and not the green of a PASS
_THEME = Theme({"markdown.code": "cyan"})  # rich's own has a black background
_GAP = 2  # of `TextRows` and `FoldedRow`
_MOST_LABEL = 28  # of a finding
# if less width is left for the last cell, it goes on lines below the row
_WORDS_MIN = 20
_DomainRow = tuple[Status, list[str], list[CheckResult]]


def render_text(report: Report, *, width: int, color: bool, verbose: bool = False) -> str:
    """The whole report for `width` columns; with or without colour, the status is always there as a word."""
    return laid_out(_parts(report, verbose), width=width, color=color)


def laid_out(parts: Iterable[RenderableType], *, width: int, color: bool) -> str:
    """The parts below each other for `width` columns, ending in a newline; trailing blanks are removed."""
    console = Console(
        file=StringIO(),
        width=max(width, NARROWEST),
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        theme=_THEME,
    )
    with console.capture() as captured:
        console.print(Group(*parts), crop=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def columns(rows: Iterable[Sequence[str]], *, width: int, indent: int = 0) -> str:
    """Rows of plain text as `TextRows` lays them out."""
    table = TextRows([[plain(cell) for cell in row] for row in rows])
    return laid_out([Padding(table, (0, 0, 0, indent))], width=width, color=False)


def _parts(report: Report, verbose: bool) -> Iterator[RenderableType]:
    yield from _head(report)
    yield Text("")
    yield _domains(report)
    if verbose:
        yield from _findings(report)
    figures = figure_lines(report.measurements)
    if figures:
        yield Text("")
        for line in figures:  # what does not fit goes on below its own beginning
            text = line.lstrip(" ")
            yield Padding(plain(text), (0, 0, 0, 2 + len(line) - len(text)))
    yield from _problems(report)
    yield Text("")
    yield from _tail(report)


def _head(report: Report) -> Iterator[Text]:
    source = report.run.source
    if not report.simulated and report.error is None and source.kind != "live":
        machine = f"that machine ({report.host.name})" if report.host.name and not report.gpus else "that machine"
        yield plain(f"Read from {source.kind} {source.name}: {machine}, not this one")
    for word, text in alarms(report):
        yield plain(f"{word} {text}", "bold yellow")
    if report.evaluated.partly and not report.gpus:
        yield from (plain(f"Note: {note}") for note in report.run.notes)
        return
    parts = (f"gpudoctor {report.tool.version}", report.host.name or source.name, *node_words(report, "x"))
    yield plain(" | ".join(parts), "bold")
    against = profile_words(report.profile)
    against = (
        f"{against[:1].upper()}{against[1:]}. " if report.profile.name == "none" else f"Judged against {against}. "
    )
    checks = f"{counted(len(report.checks), 'check')}, level {report.run.level}."
    # the verdict on a part of a node counts what of it could be judged
    yield plain(f"{against if report.gpus else ''}{'' if report.evaluated.partly else checks}".rstrip())
    for note in report.run.notes:
        yield plain(f"Note: {note}")


def _domains(report: Report) -> RenderableType:
    """A row per domain; the skipped ones of a machine without a GPU, or of a text about a part of it, share a line."""
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    higher = [r for r in report.checks if is_above(r, report.run.level)]
    asked = (r for r in report.checks if r not in higher)
    lacking: list[str] = []
    rows: list[_DomainRow] = []
    no_gpu = is_no_gpu_node(report)
    together = no_gpu or report.evaluated.partly
    for domain, group in groupby(asked, key=lambda result: result.domain):
        results = list(group)
        status = worst(result.status for result in results)
        if not (status is Status.SKIP and together):
            _add_row(rows, status, domain, results)
        elif domain == "reported" and not no_gpu:  # what nobody says is not lacking
            if reasons := _statements(results):
                table.add_row(status_word(status), plain(domain), plain("; ".join(reasons)))
        elif no_gpu or any(result.level == LEVELS[0] for result in results):  # what has to be measured is in no text
            lacking.append(domain)
    for status, domains, results in rows:
        name = domains[0] if len(domains) == 1 else f"{len(domains)} domains"
        table.add_row(status_word(status), plain(name), plain(domain_words(results, status, domains)))
    if lacking:
        why = "Nothing to look at here" if no_gpu else "Not in this text"
        return Padding(Group(table, plain(f"{why}: {', '.join(lacking)}", "dim")), (0, 0, 0, 2))
    if higher:
        text = f"{_by_level(higher)}: asked for {report.run.level}"
        table.add_row(status_word(Status.SKIP), plain("higher"), plain(text))
    return Padding(table, (0, 0, 0, 2))


def _add_row(rows: list[_DomainRow], status: Status, domain: str, results: list[CheckResult]) -> None:
    """Add a row for the domain; one that is skipped for the reason of the row before shares that."""
    if status is Status.SKIP and rows and rows[-1][0] is status and have_one_reason(rows[-1][2] + results):
        rows[-1][1].append(domain)
        rows[-1][2].extend(results)
    else:
        rows.append((status, [domain], results))


def _by_level(results: Sequence[CheckResult]) -> str:
    """ "14 checks of level standard (9), full (5)"."""
    counts = Counter(result.level for result in results)
    where = ", ".join(f"{level} ({counts[level]})" for level in LEVELS if counts[level])
    return f"{counted(len(results), 'check')} of level {where}"


def _statements(results: Iterable[CheckResult]) -> list[str]:
    """What the text says of failures that is not judged."""
    return [f.reason for r in results for f in r.findings if f.reason not in (None, NO_STATEMENT)]


def _findings(report: Report) -> Iterator[RenderableType]:
    for result in report.checks:
        yield Text("")
        yield Text.assemble(status_word(result.status), "  ", plain(result.id, "bold"), "  ", plain(result.title))
        for finding, label in alike(result.findings):
            text = finding.reason or (finding.found.text if finding.found else "")
            shown = plain(label)
            shown.truncate(_MOST_LABEL, overflow="ellipsis")
            yield FoldedRow((status_word(finding.status), shown), plain(text))


def _problems(report: Report) -> Iterator[RenderableType]:
    explained = Explained(report)
    groups, title, lacking = joined_problems(report)
    for result, findings in groups:
        yield Text("")
        yield from _block(result.id, findings, explained.by(result.id, findings))
    if lacking:
        yield Text("")
        yield Text.assemble(status_word(Status.UNKNOWN), "  ", plain(title, "bold"))
        yield from labelled_rows(lacking)


def _block(check_id: str, findings: list[Finding], explains: list[str]) -> Iterator[RenderableType]:
    first = findings[0]
    label = label_of(findings)
    who = "" if label == "node" else f"   {label}"
    yield Text.assemble(status_word(first.status), "  ", plain(check_id, "bold"), plain(who))
    yield from labelled_rows(block_rows(first, explains, findings[1:]))


def labelled_rows(rows: Sequence[tuple[str, str]]) -> Iterator[RenderableType]:
    """Rows of (label, text), the text wrapped beside its label; a command is a line of its own and never wrapped."""
    width = max((len(label) for label, _ in rows), default=0)
    for is_command, group in groupby(rows, key=lambda row: isinstance(row[1], CommandText)):
        if is_command:
            yield from (UnwrappedLine(" " * (width + 2 * _GAP) + printable(command)) for _, command in group)
            continue
        for label, text in group:
            yield FoldedRow((plain(label, "dim"),), plain(text), (width,))


class FoldedRow:
    """Cells that keep their width, and a last one that is folded into what is left, behind an indentation.

    A grid of rich shows the same and takes ten times as long, which counts in a report on hundreds of faults.
    `widths`: those of the cells but the last one, if they are not their own.
    """

    def __init__(self, cells: Sequence[Text], last: Text, widths: Sequence[int] = (), *, indent: int = _GAP) -> None:
        self._cells, self._last, self._indent = cells, last, indent
        self._widths = widths or [cell.cell_len for cell in cells]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        before = self._indent + sum(self._widths) + _GAP * len(self._widths)
        left = options.max_width - before
        if left < _WORDS_MIN:
            yield Padding(self._grid(), (0, 0, 0, _GAP))
            return
        yield Segment(" " * self._indent)
        for cell, width in zip(self._cells, self._widths, strict=True):
            yield Segment(cell.plain + " " * (width - cell.cell_len), console.get_style(cell.style))
            yield Segment(" " * _GAP)
        lines = [self._last]
        if self._last.cell_len > left:
            lines = list(self._last.wrap(console, left, overflow="fold"))
        for number, line in enumerate(lines):
            yield Segment(" " * before * (number > 0) + line.plain)
            yield Segment.line()

    def _grid(self) -> Table:
        table = Table.grid(padding=(0, _GAP))
        for width in self._widths:
            table.add_column(no_wrap=True, width=width)
        table.add_column(overflow="fold", ratio=1)
        table.add_row(*self._cells, self._last)
        return table


class UnwrappedLine:
    """A line that may be wider than the terminal: what is copied from a wrapped line does not run."""

    def __init__(self, line: str) -> None:
        self._line = printable(line)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._line)
        yield Segment.line()


def _tail(report: Report) -> Iterator[RenderableType]:
    counts = report.counts
    failed = f" ({counted(counts.fail, 'check')} failed)" if counts.fail else ""
    if not report.evaluated.partly:
        yield plain(
            f"{_faults_by_place(report)}{failed}, {counts.passed} passed, {counted(counts.warn, 'warning')}, "
            f"{counts.skip} skipped, {counts.unknown} unknown.  {report.run.duration_s:.1f} s"
        )
    word = verdict_word(report)
    style = PARTLY_STYLE if word == PARTLY else STYLES[Status(report.verdict)]
    suppressed = suppressed_in(report.checks)
    aside = f"; {suppressed} suppressed by the configuration" if suppressed else ""
    yield Text.assemble(plain(word, style), plain(f"  {verdict_words(report)}{aside}"))
    if more := also_paste(report):
        yield plain(more)
    checks = explained_next(report)
    if not checks and lacking_rows(report):
        yield plain("Next:")
        yield UnwrappedLine("  gpudoctor schema facts")
    if checks:
        yield plain("Next:")
        yield from (UnwrappedLine(f"  gpudoctor explain {check}") for check in checks)
        domains = " ".join(dict.fromkeys(check.partition(".")[0] for check in checks))
        yield UnwrappedLine(f"  gpudoctor check {domains} -v{same_run(report.run.argv)}")


def _faults_by_place(report: Report) -> str:
    """ "3 faults on GPU 2, 5 and the node"; without the places if all are the node's."""
    faults = counted(len(report.faults), "fault")
    parts = [fault.subject for fault in report.faults if fault.subject.label != NODE.label]
    node = " and the node" if len(parts) < len(report.faults) else ""
    # "GPU 2, 5 and /": in one list the path would read as a GPU
    of_gpus = [part for part in parts if part.kind == "gpu"]
    labels = (grouped_label(of_gpus), grouped_label(part for part in parts if part not in of_gpus))
    if len(parts) == len({part.gpu for part in parts} - {None}) == 2:  # "1-2" would read as the pair of both
        pair = " and ".join(str(part.gpu) for part in sorted(parts, key=lambda part: part.gpu or 0))
        return f"{faults} on GPU {pair}{node}"
    return f"{faults} on {' and '.join(filter(None, labels))}{node}" if parts else faults


def status_word(status: Status) -> Text:
    return Text(f"{status.value.upper():<7}", style=STYLES[status])


def plain(text: str, style: str = "") -> Text:
    """Text with control characters escaped: names from outside may contain terminal sequences."""
    return Text(printable(text), style=style)


class TextRows:
    """Rows of equally many cells that keep their width, but for the last one, which is folded into what is left.

    A cut node name would be another node's name, so if too little width is left, the last cell goes below the others.
    """

    def __init__(self, rows: Iterable[Sequence[Text]]) -> None:
        self._rows = [tuple(row) for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows:
            return
        *retained, _ = zip(*self._rows, strict=True)
        widest = [max(cell.cell_len for cell in column) for column in retained]
        if options.max_width - sum(widest) - _GAP * len(retained) >= _WORDS_MIN:
            yield from (FoldedRow(first, cell, widest, indent=0) for *first, cell in self._rows)
            return
        for *first, cell in self._rows:
            line = Text(" " * _GAP, overflow="fold").join(first)
            line.rstrip()
            yield line
            if cell.plain:
                cell = cell.copy()
                cell.overflow = "fold"
                yield Padding(cell, (0, 0, 0, 2 * _GAP))
