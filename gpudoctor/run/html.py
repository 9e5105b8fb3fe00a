"""The report of a run as one page: the step of each rank as a picture, over time, and what was found."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from gpudoctor.checks.core.finding import PROBLEMS, Status
from gpudoctor.diagnose import text as diagnosis_text
from gpudoctor.report.html.charts import Bar, stacked_bars
from gpudoctor.report.html.elements import Child, chip, element, lines, page, section, table
from gpudoctor.report.wording import block_rows
from gpudoctor.run.findings.progress import of_stall
from gpudoctor.run.report import FlatFinding, PhaseMs, RankReport, RunReport, as_finding

_PARTS = ("compute", "data", "host", "wait")
_MOST_BARS = 64


def render_html(report: RunReport) -> str:
    """The page; the same report gives the same bytes."""
    ended = f"ended by {report.signal}" if report.signal else f"exit code {report.exit_code}"
    head = element(
        "header", element("h1", f"run: {report.verdict.upper()}, {ended}"), class_=f"verdict {report.verdict}"
    )
    return page(f"{report.verdict.upper()}: gpudoctor run", head, element("main", *_parts(report)))


def _parts(report: RunReport) -> Iterator[Child]:
    yield element("p", element("code", " ".join(report.command)), f" on {report.host}, {report.duration_s:.1f} s")
    problems = [finding for finding in report.findings if finding.status in PROBLEMS]
    if problems:
        yield section("Findings", *(_finding(each) for each in problems), id_="findings")
    if report.stalls:
        shown = [lines("\n".join(of_stall(stall))) for stall in report.stalls]
        yield section("Where the ranks stood", *shown, id_="stalls")
    if report.diagnosis is not None and report.diagnosis.cause is not None:
        yield section("What its logs say", lines(diagnosis_text.render_text(report.diagnosis)), id_="diagnosis")
    ranks = [rank for rank in report.ranks if rank.phases is not None]
    if ranks:
        bad = {each.subject.rank: each.status for each in problems if each.subject.rank is not None}
        bars = [
            Bar(f"rank {rank.rank}", _parts_ms(rank.phases), bad.get(rank.rank))
            for rank in ranks[:_MOST_BARS]
            if rank.phases
        ]
        yield section(
            "The step of each rank", stacked_bars(_PARTS, bars, "where the step goes, ms"), _table(ranks), id_="step"
        )
        over = [_over_time(rank) for rank in ranks[:_MOST_BARS] if len(rank.over_time) > 1]
        if over:
            yield section("Over time", *over, id_="time")
    rest = [
        (f.id, chip(f.status), f.found.text if f.found else f.reason or "")
        for f in report.findings
        if f not in problems
    ]
    if rest:
        yield section("Also looked at", table(("check", "status", "found"), rest), id_="rest")
    if report.notes:
        yield section("Notes", element("ul", *(element("li", note) for note in report.notes)), id_="notes")


def _finding(flat: FlatFinding) -> Element:
    rows = [(label, words) for label, words in block_rows(as_finding(flat), ())]
    title = element("h3", chip(Status(flat.status)), f" {flat.id}: {flat.subject.label}")
    return element("div", title, table(("", ""), rows))


def _table(ranks: list[RankReport]) -> Element:
    rows = [
        (
            str(r.rank),
            str(r.steps),
            f"{r.step_ms:.2f}",
            *(f"{ms:.2f}" for ms in _parts_ms(r.phases)),
            f"{r.memory_mib:.0f}",
        )
        for r in ranks
        if r.phases is not None
    ]
    return table(("rank", "steps", "step ms", *(f"{part} ms" for part in _PARTS), "memory MiB"), rows)


def _over_time(rank: RankReport) -> Element:
    """A bar for each part of the run, as far as a picture can show."""
    every = max(1, len(rank.over_time) // 12)
    bars = [Bar(f"step {point.step}", _parts_ms(point.phases)) for point in rank.over_time[::every]]
    return element("div", element("h3", f"rank {rank.rank}"), stacked_bars(_PARTS, bars, f"rank {rank.rank} over time"))


def _parts_ms(phases: PhaseMs | None) -> tuple[float, ...]:
    if phases is None:
        return (0.0,) * len(_PARTS)
    compute = phases.forward + phases.backward + phases.optimizer + phases.between
    return compute, phases.data, phases.host, phases.wait
