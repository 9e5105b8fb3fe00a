"""The report of a run as text: what was found first, then where the step goes, then what there is to know."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from gpudoctor.checks.core.finding import PROBLEMS, Status
from gpudoctor.diagnose import text as diagnosis_text
from gpudoctor.report.wording import CommandText, block_rows
from gpudoctor.run.report import FlatFinding, RankReport, RunReport, ShownParts, as_finding, shown_parts
from gpudoctor.text.grouped import grouped
from gpudoctor.text.output import printable
from gpudoctor.text.units import duration_text

_LABEL = 10
_NARROWEST = 40
_MOST_RANKS = 64
_COLUMNS = ("rank", "steps", "step ms", "compute", "wait", "data", "host", "no CPU", "memory MiB")
_NO_CPU = _COLUMNS.index("no CPU")
_LEGEND = (
    "compute: forward, backward, optimizer and what is between; wait: in collectives, for the other ranks; "
    "data: fetching a batch; host: the rest of the loop, on the CPU"
)


def render_text(report: RunReport, *, width: int = 100) -> str:
    return "\n".join(line.rstrip() for line in _lines(report, max(width, _NARROWEST))) + "\n"


def _lines(report: RunReport, width: int) -> Iterator[str]:
    yield from _head(report, width)
    problems = [finding for finding in report.findings if finding.status in PROBLEMS]
    for finding in sorted(problems, key=lambda each: PROBLEMS.index(each.status)):
        yield ""
        yield from _block(finding, width)
    if (diagnosis := report.news_of_logs) is not None:
        yield ""
        yield "What its logs say happened first:"
        yield from diagnosis_text.render_text(diagnosis, width=width).splitlines()
    if any(rank.step_ms is not None for rank in report.ranks):
        yield ""
        yield from _table(report, width)
    rest = list(_rest(report))
    if rest:
        yield ""
    for text in rest:
        yield from textwrap.wrap(text, width, subsequent_indent="      ", break_on_hyphens=False)
    if report.kept:
        yield f"logs, stacks and dumps: {printable(report.kept)}"


def _head(report: RunReport, width: int) -> Iterator[str]:
    ended = f"ended by {report.signal}" if report.signal else f"exit code {report.exit_code}"
    yield f"gpudoctor run: {report.verdict.upper()}  {ended}, {duration_text(report.duration_s)}, {_ranks(report)}"
    if report.throughput is not None:
        rates = report.throughput
        rows = f", {_rate(rates.rows_per_s)} rows/s" if rates.rows_per_s else ""
        stood_s = sum(stall.stood_s for stall in report.stalls)
        stood = f", without the {stood_s:.0f} s in which it stood" if stood_s else ""
        together = f"{_rate(rates.steps_per_s)} steps/s{rows} of all ranks together, after {_warm_up(report)}{stood}"
        yield from textwrap.wrap(together, width, initial_indent="  ", subsequent_indent="  ")


def _rate(value: float) -> str:
    """Four digits, and all of those before the point."""
    return f"{value:.4g}" if value < 9999.5 else f"{value:.0f}"


def _rest(report: RunReport) -> Iterator[str]:
    """What is fine, what was not judged, each in a line; and the notes."""
    fine = [_short(finding) for finding in report.findings if finding.status is Status.PASS]
    if fine:
        yield f"fine: {', '.join(dict.fromkeys(fine))}"
    skips = [finding for finding in report.findings if finding.status is Status.SKIP and report.ranks]
    skipped = grouped(((finding.reason or "").partition(":")[0], _short(finding)) for finding in skips)
    if skipped:
        reasons = (f"{', '.join(names)} ({reason})" for reason, names in skipped.items())
        yield f"not judged: {'; '.join(reasons)}"
    yield from (f"note: {printable(note)}" for note in report.notes)


def _short(finding: FlatFinding) -> str:
    return finding.id.removeprefix("run.")


def _ranks(report: RunReport) -> str:
    if not report.ranks:
        return "no rank observed"
    world = report.world_size or len(report.ranks)
    of = f" of {world}" if world != len(report.ranks) else ""
    device = "GPU" if any(rank.gpu is not None for rank in report.ranks) else "CPU"
    return f"{len(report.ranks)}{of} {device} rank{'s' if len(report.ranks) > 1 else ''}"


def _warm_up(report: RunReport) -> str:
    first = next((rank for rank in report.ranks if rank.warm_up_steps), None)
    return f"{first.warm_up_steps} steps of warm-up ({(first.warm_up_ms or 0) / 1000:.2f} s)" if first else "no warm-up"


def _block(flat: FlatFinding, width: int) -> Iterator[str]:
    finding = as_finding(flat)
    yield f"{flat.status.value.upper():<8}{flat.id}  {flat.subject.label}"
    for label, text in block_rows(finding, ()):
        start, indent = f"  {label:<{_LABEL}}", " " * (_LABEL + 2)
        if isinstance(text, CommandText):  # to be copied
            yield start + printable(text)
            continue
        yield from textwrap.wrap(
            printable(text), width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
        ) or [f"  {label}"]


def _table(report: RunReport, width: int) -> Iterator[str]:
    """Where the step of each rank goes; if that is too wide, with less space between the columns."""
    ranks = [rank for rank in report.ranks if rank.step_ms is not None]
    rows = [_row(rank) for rank in ranks[:_MOST_RANKS]]
    lacked = any(row[_NO_CPU] not in ("0.0", "") for row in rows)
    columns = [n for n in range(len(_COLUMNS)) if n != _NO_CPU or lacked]
    widths = {column: max(len(row[column]) for row in (_COLUMNS, *rows)) for column in columns}
    gap = "  " if sum(widths.values()) + 2 * (len(columns) - 1) <= width else " "
    for row in (_COLUMNS, *rows):
        yield gap.join(row[column].rjust(widths[column]) for column in columns)
    if len(ranks) > _MOST_RANKS:
        yield f"... and {len(ranks) - _MOST_RANKS} more ranks (--format json)"
    yield from textwrap.wrap(_LEGEND, width)
    if lacked:
        yield "no CPU: ready to run without one; no part of the others"


def _row(rank: RankReport) -> tuple[str, ...]:
    parts = shown_parts(rank.phases, rank.queued) if rank.phases is not None else ShownParts(0, 0, 0, 0, 0)
    whole_ms = (rank.step_ms or 0) - parts.no_cpu

    def part(ms: float) -> str:
        return f"{ms:.1f} {ms / (whole_ms or 1):4.0%}"

    return (
        str(rank.rank),
        str(rank.steps),
        f"{rank.step_ms:.1f}",
        part(parts.compute),
        part(parts.wait),
        part(parts.data),
        part(parts.host),
        f"{parts.no_cpu:.1f}" if rank.queued is not None else "",
        f"{rank.memory_mib:.0f}",
    )
