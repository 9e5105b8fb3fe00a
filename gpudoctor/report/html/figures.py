"""The measurements of the probes: charts with their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.measurements import Collective, Measurements, ProbeProblem
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.telemetry import Burn, GpuCounters, Series, Telemetry
from gpudoctor.report.html.charts import bandwidths, lines_by_size
from gpudoctor.report.html.parts import (
    Bar,
    Bars,
    Card,
    Cell,
    Items,
    Paragraph,
    Part,
    Preformatted,
    Rows,
    Section,
    Strong,
    section,
)
from gpudoctor.report.model import Report, findings_of
from gpudoctor.report.tables.devices import (
    STEP_PARTS,
    RankName,
    compute_table,
    growth_text,
    rank_name,
    sample_count,
    step_parts_ms,
    telemetry_table,
    training_table,
    training_words,
    wrong_text,
)
from gpudoctor.report.tables.links import collective_table, host_table
from gpudoctor.report.tables.table import Table, aligned
from gpudoctor.report.tables.workloads import library_tables, loading_tables, storage_tables, strategy_tables
from gpudoctor.text.grouped import grouped
from gpudoctor.text.units import size_text


def figures_part(report: Report) -> Iterator[Section]:
    """A section per kind of figure that was measured, in the order in which the probes run."""
    measured = report.measurements
    yield from section("Problems of the probes", map(_problem, measured.problems), "probe-problems", opened=True)
    launch = measured.launch
    libraries = section("Strategies of other libraries", _side_by_side(library_tables(measured)), "libraries")
    read = (_drawn(table, table.title) for table in storage_tables(measured))
    storage = section("Reads from storage", read, "storage")
    if launch is None:
        yield from (*libraries, *storage)
        return
    name = partial(rank_name, measured, long=True)
    kind = "CPU ranks" if launch.backend == "gloo" else "GPUs"
    took = known(launch.total_s)
    seconds = "" if took is None else f", {took:.1f} s"
    measured_on = f"Measured on {launch.world_size} {kind} ({launch.backend}, {launch.method}{seconds})."
    yield from section("Where a step goes", _training(report, name, measured_on), "ranks", opened=True)
    yield from section("Collectives", _collectives(measured.collectives, kind), "collectives")
    yield from section("Bandwidth", (*bandwidths(measured), *_host_links(measured, name)), "bandwidth")
    yield from section("Compute", _compute(measured, name), "compute")
    yield from section("Strategies", _side_by_side(strategy_tables(measured)), "strategies")
    yield from section("Data loading", _side_by_side(loading_tables(measured)), "data-loading")
    yield from libraries
    yield from section("GPUs under load", map(_telemetry, measured.telemetry), "telemetry")
    yield from section("Burn", _burn(measured.burn, name), "burn")
    yield from storage


def _side_by_side(tables: Sequence[Table]) -> Iterator[Part]:
    """Tables as preformatted text: easy to read across, and to copy into a terminal."""
    each = (line for made in tables for line in (made.title, *aligned(made, "  ")))
    if tables:
        yield Preformatted("\n".join(each))


def _drawn(figures: Table, caption: str) -> Rows:
    return Rows(figures.head, figures.rows, caption)


def _problem(problem: ProbeProblem) -> Card:
    where: list[str] = [problem.probe, problem.kind]
    where += [] if problem.rank is None else [f"rank {problem.rank}"]
    where += [] if problem.phase is None else [problem.phase]
    output = (Preformatted("\n".join(problem.output)),) if problem.output else ()
    return Card("unknown", (Strong(f"{', '.join(where)}:"), problem.text), output)


def _training(report: Report, name: RankName, measured_on: str) -> Iterator[Part]:
    training = report.measurements.training
    if training is None:
        yield Paragraph(measured_on)
        return
    marks = _marks(report)
    bars = []
    for rank in training.ranks:
        status = marks[rank.rank][0].value if rank.rank in marks else None
        bars.append(Bar(name(rank.rank), step_parts_ms(rank), status))
    yield Paragraph(f"{measured_on} {' '.join(training_words(training))}")
    yield Bars(f"Time of each rank in a step of the DDP train: {', '.join(STEP_PARTS)}", STEP_PARTS, tuple(bars))
    yield from (
        Paragraph((Strong(f"{name(rank)} {status.value.upper()}:"), cause))
        for rank, (status, cause) in marks.items()
        if cause
    )
    figures = training_table(training, name)
    rows = tuple((*row[:-2], " → ".join(row[-2:])) for row in figures.rows)
    yield Rows((*figures.head[:-2], "loss"), rows, "Medians of a step")


def _marks(report: Report) -> dict[int, tuple[Status, str]]:
    """The (status, likely cause) that check train.balance reports, by rank with a problem."""
    marks: dict[int, tuple[Status, str]] = {}
    for finding in findings_of(report, "train.balance"):
        rank = finding.subject.rank
        if rank is not None and finding.status not in (Status.PASS, Status.SKIP):
            marks.setdefault(rank, (finding.status, finding.likely or finding.reason or ""))
    return marks


def _collectives(done: tuple[Collective, ...], kind: str) -> Iterator[Part]:
    if not done:
        return
    series = grouped((row.op, (row.size_bytes, row.busbw_gb_s)) for row in done if row.size_bytes > 0)
    if any(len({size for size, _ in points}) > 1 for points in series.values()):
        yield lines_by_size(series, f"Bus bandwidth by message size on {kind}")
    caption = f"Busbw in GB/s in {done[0].dtype}, and median time of the slowest rank"
    yield _drawn(collective_table(done).turned("size"), caption)
    wrong = tuple(f"{row.op} of {size_text(row.size_bytes)}: {_wrong(row)}" for row in done if _wrong(row))
    yield Items(wrong, "wrong") if wrong else Paragraph("Every sum was exactly right.", "legend")


def _wrong(row: Collective) -> str:
    statements = [f"WRONG on rank {rank}" for rank in row.wrong_ranks]
    statements += [f"WITHOUT rank {rank}" for rank in row.missing_ranks]
    return ", ".join(statements)


def _host_links(measured: Measurements, name: RankName) -> Iterator[Part]:
    if measured.host_links:
        size = size_text(measured.host_links[0].size_bytes)
        yield _drawn(host_table(measured, name, ".2f"), f"Pinned copies of {size} between host and GPU, GB/s")


def _compute(measured: Measurements, name: RankName) -> Iterator[Part]:
    if measured.compute:
        yield _drawn(compute_table(measured.compute, name, ".0f"), "All ranks at the same time")


def _telemetry(telemetry: Telemetry) -> Part:
    samples = sample_count(telemetry)
    ended = "" if telemetry.ended is None else f"; not sampled to the end: {telemetry.ended}"
    caption = f"During {telemetry.during}: medians of {samples} readings in {telemetry.duration_s:.1f} s{ended}"
    return _drawn(telemetry_table(telemetry), caption)


def _burn(burn: Burn | None, name: RankName) -> Iterator[Part]:
    if burn is None:
        return
    yield Paragraph(f"{burn.rounds} complete rounds in {burn.duration_s:.0f} s ({burn.asked_s:.0f} s asked for).")
    if burn.wrong_count:
        more = burn.wrong_count - len(burn.wrong)
        yield Items((*map(wrong_text, burn.wrong), *([f"and {more} more"] if more > 0 else [])), "wrong")
    if burn.series:
        head = ("figure", "rank", "unit", "at first", "at last", "change", "lowest", "highest")
        yield Rows(head, tuple(_course(series, name) for series in burn.series), "Course over the rounds")
    if not isinstance(burn.counters, Missing) and burn.counters:
        yield Rows(
            ("GPU", "counters that grew", "not read"), tuple(map(_counters, burn.counters)), "Counters over the burn"
        )
    if not isinstance(burn.kernel_events, Missing) and burn.kernel_events:
        yield Preformatted("\n".join(event.text for event in burn.kernel_events), "New lines in the kernel log")


def _course(series: Series, name: RankName) -> tuple[Cell, ...]:
    early, late = series.early, series.late
    change = "-" if not early.median else f"{late.median / early.median - 1:+.1%}"
    who = "all" if series.rank is None else name(series.rank)
    extremes = (min(early.low, late.low), max(early.high, late.high))
    figures = (f"{value:.4g}" for value in (early.median, late.median))
    return (series.metric, who, series.unit, *figures, change, *(f"{value:.4g}" for value in extremes))


def _counters(gpu: GpuCounters) -> tuple[Cell, ...]:
    unread = ", ".join(f"{name.replace('_', ' ')}: {why.reason}" for name, why in gpu.unread.items())
    return f"GPU {gpu.index}", growth_text(gpu) or "-", unread or "-"
