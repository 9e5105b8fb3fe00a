"""The measurements of the probes: charts with their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from xml.etree.ElementTree import Element

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.measurements import Collective, Measurements, ProbeProblem, Training
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.telemetry import Burn, GpuCounters, Series, Telemetry
from gpudoctor.report.html.charts import Bar, bandwidths, lines_by_size, stacked_bars
from gpudoctor.report.html.elements import Child, element, lines, section, table
from gpudoctor.report.model import Report, findings_of
from gpudoctor.report.tables.devices import (
    RankName,
    compute_table,
    growth_text,
    rank_name,
    sample_count,
    telemetry_table,
    training_table,
    wrong_text,
)
from gpudoctor.report.tables.links import collective_table, host_table
from gpudoctor.report.tables.table import Table, aligned
from gpudoctor.report.tables.workloads import library_tables, loading_tables, storage_table, strategy_tables
from gpudoctor.units import size_text


def figures_part(report: Report) -> Iterator[Child]:
    """A section per kind of figure that was measured, in the order in which the probes run."""
    measured = report.measurements
    yield section("Problems of the probes", *(_problem(each) for each in measured.problems), id_="probe-problems")
    launch = measured.launch
    libraries = section("Strategies of other libraries", _side_by_side(library_tables(measured)), id_="libraries")
    storage = section("Reads from storage", *_storage(measured), id_="storage")
    if launch is None:
        yield libraries
        yield storage
        return
    name = partial(rank_name, measured, long=True)
    kind = "CPU ranks" if launch.backend == "gloo" else "GPUs"
    took = known(launch.total_s)
    seconds = "" if took is None else f", {took:.1f} s"
    said = element(
        "p", f"Measured on {launch.world_size} {kind} ({launch.backend}, {launch.method}{seconds}).", class_="kind"
    )
    yield said
    yield section("Ranks of the DDP train", *_training(report, name), id_="ranks")
    yield section("Collectives", *_collectives(measured.collectives, kind), id_="collectives")
    yield section("Bandwidth", *bandwidths(measured), _host_links(measured, name), id_="bandwidth")
    yield section("Compute", _compute(measured, name), id_="compute")
    yield section("Strategies", _side_by_side(strategy_tables(measured)), id_="strategies")
    yield section("Data loading", _side_by_side(loading_tables(measured)), id_="data-loading")
    yield libraries
    yield section("GPUs under load", *(_telemetry(each) for each in measured.telemetry), id_="telemetry")
    if measured.burn is not None:
        yield section("Burn", *_burn(measured.burn, name), id_="burn")
    yield storage


def _side_by_side(tables: Sequence[Table]) -> Child:
    """Tables as preformatted text: easy to read across, and to copy into a terminal."""
    each = (line for made in tables for line in (made.title, *aligned(made, "  ")))
    return lines("\n".join(each)) if tables else None


def _drawn(figures: Table, caption: str) -> Element:
    return table(figures.head, figures.rows, caption=caption)


def _problem(problem: ProbeProblem) -> Element:
    where: list[str] = [problem.probe, problem.kind]
    where += [] if problem.rank is None else [f"rank {problem.rank}"]
    where += [] if problem.phase is None else [problem.phase]
    output = lines("\n".join(problem.output)) if problem.output else None
    return element("div", element("p", element("b", ", ".join(where)), f": {problem.text}"), output, class_="part")


def _training(report: Report, name: RankName) -> Iterator[Child]:
    training = report.measurements.training
    if training is None:
        return
    marks = _marks(report)
    bars = [
        Bar(
            name(rank.rank),
            (rank.compute_ms, rank.wait_ms, rank.data_ms),
            marks[rank.rank][0] if rank.rank in marks else None,
        )
        for rank in training.ranks
    ]
    yield element("p", _train_words(training))
    label = "Time of each rank in a step of the DDP train: compute, wait for other ranks, data"
    yield element("figure", stacked_bars(("compute", "wait", "data"), bars, label))
    for rank, (status, cause) in marks.items():
        if cause:
            who = f"{name(rank)} {status.value.upper()}: "
            yield element("p", element("strong", who), cause, class_="cause")
    figures = training_table(training, name)
    rows = ((*row[:-2], " → ".join(row[-2:])) for row in figures.rows)
    yield table((*figures.head[:-2], "loss"), rows, caption="Medians of a step")


def _train_words(training: Training) -> str:
    words = [
        f"{training.world_size} × {training.batch_per_rank} samples a step, "
        f"{training.parameters / 1e6:.2f} M parameters, {training.steps} measured steps"
    ]
    steady, speed, alone = (known(v) for v in (training.steady_step_ms, training.samples_per_s, training.solo_step_ms))
    words += [] if steady is None or speed is None else [f"{steady:.2f} ms a step, {speed:.0f} samples/s"]
    words += [] if alone is None else [f"one rank alone {alone:.2f} ms"]
    return "; ".join(words) + "."


def _marks(report: Report) -> dict[int, tuple[Status, str]]:
    """The (status, likely cause) that check train.balance reports, by rank with a problem."""
    marks: dict[int, tuple[Status, str]] = {}
    for finding in findings_of(report, "train.balance"):
        rank = finding.subject.rank
        if rank is not None and finding.status not in (Status.PASS, Status.SKIP):
            marks.setdefault(rank, (finding.status, finding.likely or finding.reason or ""))
    return marks


def _collectives(done: tuple[Collective, ...], kind: str) -> Iterator[Child]:
    if not done:
        return
    series: dict[str, list[tuple[int, float]]] = {}
    for row in done:
        if row.size_bytes > 0:
            series.setdefault(row.op, []).append((row.size_bytes, row.busbw_gb_s))
    if any(len({size for size, _ in points}) > 1 for points in series.values()):
        label = f"Bus bandwidth by message size on {kind}"
        yield element("figure", lines_by_size(series, "GB/s", label))
    caption = f"Busbw in GB/s in {done[0].dtype}, and median time of the slowest rank"
    yield _drawn(collective_table(done).turned("size"), caption)
    wrong = [element("li", f"{row.op} of {size_text(row.size_bytes)}: {_wrong(row)}") for row in done if _wrong(row)]
    yield (
        element("ul", *wrong, class_="wrong")
        if wrong
        else element("p", "Every sum was exactly right.", class_="legend")
    )


def _wrong(row: Collective) -> str:
    said = [f"WRONG on rank {rank}" for rank in row.wrong_ranks]
    said += [f"WITHOUT rank {rank}" for rank in row.missing_ranks]
    return ", ".join(said)


def _host_links(measured: Measurements, name: RankName) -> Child:
    if not measured.host_links:
        return None
    size = size_text(measured.host_links[0].size_bytes)
    return _drawn(host_table(measured, name, ".2f"), f"Pinned copies of {size} between host and GPU, GB/s")


def _compute(measured: Measurements, name: RankName) -> Child:
    if not measured.compute:
        return None
    return _drawn(compute_table(measured.compute, name, ".0f"), "All ranks at the same time")


def _storage(measured: Measurements) -> Iterator[Element]:
    for figures in (storage_table(read) for read in measured.storage if read.rates):
        yield _drawn(figures, f"{figures.title[0].upper()}{figures.title[1:]}, readers together")


def _telemetry(telemetry: Telemetry) -> Element:
    samples = sample_count(telemetry)
    ended = "" if telemetry.ended is None else f"; not sampled to the end: {telemetry.ended}"
    caption = f"During {telemetry.during}: medians of {samples} samples in {telemetry.duration_s:.1f} s{ended}"
    return _drawn(telemetry_table(telemetry), caption)


def _burn(burn: Burn, name: RankName) -> Iterator[Child]:
    yield element("p", f"{burn.rounds} complete rounds in {burn.duration_s:.0f} s ({burn.asked_s:.0f} s asked for).")
    if burn.wrong_count:
        shown = [element("li", wrong_text(each)) for each in burn.wrong]
        more = burn.wrong_count - len(burn.wrong)
        yield element("ul", *shown, element("li", f"and {more} more") if more > 0 else None, class_="wrong")
    if burn.series:
        head = ("figure", "rank", "unit", "at first", "at last", "change", "lowest", "highest")
        yield table(head, (_course(series, name) for series in burn.series), caption="Course over the rounds")
    if not isinstance(burn.counters, Missing) and burn.counters:
        yield table(
            ("GPU", "counters that grew", "not read"),
            (_counters(gpu) for gpu in burn.counters),
            caption="Counters over the burn",
        )
    if not isinstance(burn.kernel_events, Missing) and burn.kernel_events:
        yield element("h3", "New lines in the kernel log")
        yield lines("\n".join(event.text for event in burn.kernel_events))


def _course(series: Series, name: RankName) -> tuple[Child, ...]:
    early, late = series.early, series.late
    change = "-" if not early.median else f"{late.median / early.median - 1:+.1%}"
    who = "all" if series.rank is None else name(series.rank)
    extremes = (min(early.low, late.low), max(early.high, late.high))
    figures = (f"{value:.4g}" for value in (early.median, late.median))
    return (series.metric, who, series.unit, *figures, change, *(f"{value:.4g}" for value in extremes))


def _counters(gpu: GpuCounters) -> tuple[Child, ...]:
    unread = ", ".join(f"{name.replace('_', ' ')}: {why.reason}" for name, why in gpu.unread.items())
    return f"GPU {gpu.index}", growth_text(gpu) or "-", unread or "-"
