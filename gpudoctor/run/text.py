"""The report of a run as text: what was found first, then where the step goes, then what there is to know."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from gpudoctor.checks.core.finding import PROBLEMS, Status
from gpudoctor.diagnose import text as diagnosis_text
from gpudoctor.report.wording import block_rows
from gpudoctor.run.report import FlatFinding, RankReport, RunReport, as_finding
from gpudoctor.text.output import printable
from gpudoctor.text.units import duration_text

_LABEL = 10
_MOST_RANKS = 64
_COLUMNS = ("rank", "steps", "step ms", "compute", "wait", "data", "host", "memory MiB")


def render_text(report: RunReport, *, width: int = 100) -> str:
    """The whole report."""
    return "\n".join(line.rstrip() for line in _lines(report, max(width, 60))) + "\n"


def _lines(report: RunReport, width: int) -> Iterator[str]:
    ended = f"ended by {report.signal}" if report.signal else f"exit code {report.exit_code}"
    yield f"gpudoctor run: {report.verdict.upper()}  {ended}, {duration_text(report.duration_s)}, {_ranks(report)}"
    if report.throughput is not None:
        rates = report.throughput
        rows = f", {rates.rows_per_s:.4g} rows/s" if rates.rows_per_s else ""
        stood_s = sum(stall.stood_s for stall in report.stalls)
        stood = f", without the {stood_s:.0f} s in which it stood" if stood_s else ""
        yield f"  {rates.steps_per_s:.4g} steps/s{rows} of all ranks together, after {_warm_up(report)}{stood}"
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
        yield from _table(report)
    fine = [f"{f.id}: {f.found.text if f.found else ''}" for f in report.findings if f.status is Status.PASS]
    if fine:
        yield ""
        yield from textwrap.wrap(f"fine: {'; '.join(fine)}", width, subsequent_indent="      ")
    for skipped in (f for f in report.findings if f.status is Status.SKIP and report.ranks):
        yield from textwrap.wrap(f"not judged: {skipped.id}: {skipped.reason}", width, subsequent_indent="      ")
    for note in report.notes:
        yield from textwrap.wrap(f"note: {printable(note)}", width, subsequent_indent="      ")
    if report.kept:
        yield f"logs, stacks and dumps: {printable(report.kept)}"


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
    for label, words in block_rows(finding, ()):
        yield from textwrap.wrap(
            printable(words), width, initial_indent=f"  {label:<{_LABEL}}", subsequent_indent=" " * (_LABEL + 2)
        ) or [f"  {label}"]


def _table(report: RunReport) -> Iterator[str]:
    """Where the step of each rank goes."""
    ranks = [rank for rank in report.ranks if rank.step_ms is not None]
    rows = [_COLUMNS, *(_row(rank) for rank in ranks[:_MOST_RANKS])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        yield "  ".join(cell.rjust(wide) for cell, wide in zip(row, widths, strict=True))
    if len(ranks) > _MOST_RANKS:
        yield f"... and {len(ranks) - _MOST_RANKS} more ranks (--format json)"
    yield "compute: forward, backward, optimizer and what is between; wait: in collectives, for the other ranks;"
    yield "data: fetching a batch; host: the rest of the loop, on the CPU"


def _row(rank: RankReport) -> tuple[str, ...]:
    def part(ms: float | None) -> str:
        return f"{ms or 0:.1f} {(ms or 0) / (rank.step_ms or 1):4.0%}"

    return (
        str(rank.rank),
        str(rank.steps),
        f"{rank.step_ms:.1f}",
        part(rank.compute_ms),
        part(rank.wait_ms),
        part(rank.data_ms),
        part(rank.host_ms),
        f"{rank.memory_mib:.0f}",
    )
