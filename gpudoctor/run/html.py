"""The report of a run as one page: what was found, the step of each rank as a picture, over time, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpudoctor.checks.core.finding import PROBLEMS
from gpudoctor.diagnose import text as diagnosis_text
from gpudoctor.report.html.cards import advice_cards, finding_card
from gpudoctor.report.html.parts import (
    Bar,
    Bars,
    Cell,
    Chip,
    Fold,
    Items,
    Page,
    Paragraph,
    Part,
    Preformatted,
    Rows,
    Section,
    section,
)
from gpudoctor.report.html.render import render_page
from gpudoctor.run.report import FlatFinding, RankReport, RunReport, as_finding, shown_parts

_PARTS = ("compute", "wait", "data", "host", "no CPU")
_MOST_BARS = 64
_LEAST_NO_CPU_MS = 0.05


def render_html(report: RunReport) -> str:
    """The page; the same report gives the same bytes."""
    problems = [finding for finding in report.findings if finding.status in PROBLEMS]
    others = tuple(
        (each.id, Chip(each.status), each.found.text if each.found else each.reason or "")
        for each in report.findings
        if each not in problems
    )
    word = report.verdict.upper()
    page = Page(
        title=f"{word}: gpudoctor run",
        kicker="gpudoctor run",
        heading=" ".join(report.command),
        status=report.verdict,
        word=word,
        verdict=f"ended by {report.signal}" if report.signal else f"exit code {report.exit_code}",
        reason=report.reason,
        where=f"on {report.host}, {report.duration_s:.1f} s",
        banners=(("ERROR", report.error, "loud"),) if report.error else (),
        do=section("What to do", advice_cards((each.id, (as_finding(each),)) for each in problems), "do"),
        evidence=(
            *section("Findings", (finding_card(each.id, (as_finding(each),)) for each in problems), "findings"),
            *section("What its logs say", _diagnosis(report), "diagnosis"),
            *section("Where a step goes", _ranks(report, problems), "step"),
        ),
        rest=tuple(_rest(report, others)),
    )
    return render_page(page)


def _diagnosis(report: RunReport) -> Iterator[Part]:
    if (diagnosis := report.news_of_logs) is not None:
        yield Preformatted(diagnosis_text.render_text(diagnosis))


def _ranks(report: RunReport, problems: list[FlatFinding]) -> Iterator[Part]:
    ranks = [(rank, rank.phases) for rank in report.ranks if rank.phases is not None]
    if not ranks:
        return
    bad = {each.subject.rank: each.status.value for each in problems if each.subject.rank is not None}
    every = [(rank, shown_parts(phases, rank.queued)) for rank, phases in ranks]
    parts = _parts_of(ms for _, ms in every)
    bars = tuple(Bar(f"rank {rank.rank}", ms[: len(parts)], bad.get(rank.rank)) for rank, ms in every[:_MOST_BARS])
    yield Bars("where the step goes, ms", parts, bars)
    legend = "compute: forward, backward, optimizer and between them; wait: for other ranks in collectives; "
    last = "; no CPU: ready to run without one, no part of the others" if len(parts) == len(_PARTS) else ""
    yield Paragraph(f"{legend}data: fetching a batch; host: after the optimizer until the next batch{last}.", "legend")
    rows = tuple(
        (
            str(rank.rank),
            str(rank.steps),
            "-" if rank.step_ms is None else f"{rank.step_ms:.2f}",
            *(f"{part_ms:.2f}" for part_ms in ms[: len(parts)]),
            "-" if rank.memory_mib is None else f"{rank.memory_mib:.0f}",
        )
        for rank, ms in every
    )
    yield Rows(("rank", "steps", "step ms", *(f"{part} ms" for part in parts), "memory MiB"), rows)


def _rest(report: RunReport, others: tuple[tuple[Cell, ...], ...]) -> Iterator[Section]:
    over = (_over_time(rank) for rank in report.ranks[:_MOST_BARS] if rank.phases and len(rank.over_time) > 1)
    yield from section("Over time", over, "time")
    yield from section("Also looked at", [Rows(("check", "", "found"), others, wraps=True)] if others else (), "rest")
    yield from section("Notes", (Items(tuple(report.notes)),) if report.notes else (), "notes")


def _over_time(rank: RankReport) -> Fold:
    """A bar for each part of the run, as far as a picture can show, and its figures."""
    every = max(1, len(rank.over_time) // 12)
    points = [
        (f"step {point.step}", shown_parts(point.phases, point.queued if rank.queued is not None else None))
        for point in rank.over_time[::every]
    ]
    parts = _parts_of(ms for _, ms in points)
    name = f"rank {rank.rank}"
    bars = Bars(f"{name} over time", parts, tuple(Bar(step, ms[: len(parts)]) for step, ms in points))
    rows = tuple((step, *(f"{part_ms:.2f}" for part_ms in ms[: len(parts)])) for step, ms in points)
    return Fold(name, (bars, Rows(("from", *(f"{part} ms" for part in parts)), rows)))


def _parts_of(rows: Iterable[tuple[float, ...]]) -> tuple[str, ...]:
    """The names of the parts: time without a CPU is one only where there is some."""
    return _PARTS if any(ms[-1] >= _LEAST_NO_CPU_MS for ms in rows) else _PARTS[:-1]
