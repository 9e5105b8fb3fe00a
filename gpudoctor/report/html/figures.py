"""What the probes measured: charts with their tables. CPU ranks are called CPU ranks."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent
from xml.etree.ElementTree import Element

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.measured_burn import Burn, GpuCounters, Series
from gpudoctor.facts.model.measurements import Collective, Measurements, ProbeProblem, Training
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.telemetry import Telemetry
from gpudoctor.report.collective_figures import column_of
from gpudoctor.report.html.charts import Bar, lines_by_size, stacked_bars
from gpudoctor.report.html.elements import Child, element, lines, section, table
from gpudoctor.report.html.matrices import bandwidths, rank_name
from gpudoctor.report.model import Report
from gpudoctor.report.strategy_figures import library_lines, strategy_lines
from gpudoctor.report.telemetry_figures import TELEMETRY_COLUMNS, telemetry_cells
from gpudoctor.units import figure_text, size_text, time_text, whole_mib_text


def figures_part(report: Report) -> Iterator[Child]:
    """A section for each kind of figure that was measured, in the order in which the probes run."""
    measured = report.measurements
    yield section("Problems of the probes", *(_problem(each) for each in measured.problems), id_="probe-problems")
    launch, of_libraries = measured.launch, library_lines(measured)
    libraries = section(
        "Strategies of other libraries",
        *([lines(dedent("\n".join(of_libraries)))] if of_libraries else []),
        id_="libraries",
    )
    if launch is None:
        yield libraries
        return
    kind = "CPU ranks" if launch.backend == "gloo" else "GPUs"
    took = known(launch.total_s)
    seconds = "" if took is None else f", {took:.1f} s"
    said = element(
        "p", f"Measured on {launch.world_size} {kind} ({launch.backend}, {launch.method}{seconds}).", class_="kind"
    )
    yield said
    yield section("Ranks of the DDP train", *_training(report), id_="ranks")
    yield section("Collectives", *_collectives(measured.collectives, kind), id_="collectives")
    yield section("Bandwidth", *bandwidths(measured), *_host_links(measured), id_="bandwidth")
    yield section("Compute", *_compute(measured), id_="compute")
    yield section("Strategies", *(lines(text) for text in _strategies(measured)), id_="strategies")
    yield libraries
    yield section("GPUs under load", *(_telemetry(each) for each in measured.telemetry), id_="telemetry")
    if measured.burn is not None:
        yield section("Burn", *_burn(measured.burn, measured), id_="burn")


def _strategies(measured: Measurements) -> Iterator[str]:
    rows = strategy_lines(measured)
    if rows:
        yield dedent("\n".join(rows))


def _problem(problem: ProbeProblem) -> Element:
    where: list[str] = [problem.probe, problem.kind]
    where += [] if problem.rank is None else [f"rank {problem.rank}"]
    where += [] if problem.phase is None else [problem.phase]
    output = lines("\n".join(problem.output)) if problem.output else None
    return element("div", element("p", element("b", ", ".join(where)), f": {problem.text}"), output, class_="part")


def _training(report: Report) -> Iterator[Child]:
    training = report.measurements.training
    if training is None:
        return
    measured = report.measurements
    marks = _marks(report)
    bars = [
        Bar(
            rank_name(measured, rank.rank, long=True),
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
            who = f"{rank_name(measured, rank, long=True)} {status.value.upper()}: "
            yield element("p", element("strong", who), cause, class_="cause")
    rows = [
        (
            rank_name(measured, rank.rank, long=True),
            f"{rank.compute_ms:.2f}",
            f"{rank.wait_ms:.2f}",
            f"{rank.data_ms:.2f}",
            f"{rank.step_ms:.2f}",
            f"{rank.last_in_share:.0%}",
            _number(known(rank.memory_peak_mib), ".0f"),
            f"{_loss(rank.loss_first)} → {_loss(rank.loss_last)}",
        )
        for rank in training.ranks
    ]
    head = ("rank", "compute ms", "wait ms", "data ms", "step ms", "came last", "memory peak MiB", "loss")
    yield table(head, rows, caption="Medians of a step")


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
    """What the check of the balance says of a rank that is not fine: (its status, the likely cause)."""
    marks: dict[int, tuple[Status, str]] = {}
    for result in report.checks:
        if result.id != "train.balance":
            continue
        for finding in result.findings:
            rank = finding.subject.rank
            if rank is None or finding.status in (Status.PASS, Status.SKIP) or rank in marks:
                continue
            marks[rank] = (finding.status, finding.likely or finding.reason or "")
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
    yield table(*_by_size(done), caption=f"Busbw in GB/s in {done[0].dtype}, and median time of the slowest rank")
    wrong = [element("li", f"{row.op} of {size_text(row.size_bytes)}: {_wrong(row)}") for row in done if _wrong(row)]
    yield (
        element("ul", *wrong, class_="wrong")
        if wrong
        else element("p", "Every sum was exactly right.", class_="legend")
    )


def _by_size(done: tuple[Collective, ...]) -> tuple[tuple[str, ...], list[tuple[Child, ...]]]:
    """A row for each size (about), a column for each operation."""
    operations = list(dict.fromkeys(row.op for row in done))
    sizes: dict[int, list[Collective]] = {}
    for row in done:
        sizes.setdefault(column_of(row), []).append(row)
    rows: list[tuple[Child, ...]] = []
    for _, same in sorted(sizes.items()):
        title = size_text(max(row.size_bytes for row in same))
        cells = {row.op: f"{figure_text(row.busbw_gb_s)} ({time_text(row.time_us)})" for row in same}
        rows.append((title, *(cells.get(operation, "-") for operation in operations)))
    return ("size", *operations), rows


def _wrong(row: Collective) -> str:
    said = [f"WRONG on rank {rank}" for rank in row.wrong_ranks]
    said += [f"WITHOUT rank {rank}" for rank in row.missing_ranks]
    return ", ".join(said)


def _host_links(measured: Measurements) -> Iterator[Child]:
    if not measured.host_links:
        return
    rows = [
        (
            rank_name(measured, link.rank, long=True),
            f"{link.h2d_alone_gb_s:.2f}",
            f"{link.d2h_alone_gb_s:.2f}",
            _number(known(link.h2d_together_gb_s), ".2f"),
            _number(known(link.d2h_together_gb_s), ".2f"),
        )
        for link in measured.host_links
    ]
    head = ("rank", "to GPU, alone", "from GPU, alone", "to GPU, all at once", "from GPU, all at once")
    size = size_text(measured.host_links[0].size_bytes)
    yield table(head, rows, caption=f"Pinned copies of {size} between host and GPU, GB/s")


def _compute(measured: Measurements) -> Iterator[Child]:
    if not measured.compute:
        return
    rows = [
        (
            rank_name(measured, each.rank, long=True),
            ", ".join(f"{gemm.dtype} {gemm.tflops:.3g}" for gemm in each.gemms) or "-",
            _number(known(each.copy_gb_s), ".0f"),
            _number(known(each.triad_gb_s), ".0f"),
            "-" if not each.fingerprints else "same" if len(set(each.fingerprints)) == 1 else "NOT STEADY",
            each.fingerprints[0][:8] if each.fingerprints else "-",
            _pattern(known(each.pattern_bytes), known(each.pattern_wrong_bytes)),
        )
        for each in measured.compute
    ]
    head = ("rank", "products TFLOP/s", "copy GB/s", "triad GB/s", "repeats", "bits", "memory pattern")
    yield table(head, rows, caption="All ranks at the same time")


def _pattern(covered: int | None, wrong: int | None) -> str:
    if covered is None:
        return "-"
    return f"{whole_mib_text(covered)}, " + ("not compared" if wrong is None else f"{wrong} bytes wrong")


def _telemetry(telemetry: Telemetry) -> Element:
    rows = [telemetry_cells(gpu) for gpu in telemetry.gpus]
    ended = "" if telemetry.ended is None else f"; not sampled to the end: {telemetry.ended}"
    counts = [gpu.samples for gpu in telemetry.gpus] or [0]
    samples = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    caption = f"During {telemetry.during}: medians of {samples} samples in {telemetry.duration_s:.1f} s{ended}"
    return table(TELEMETRY_COLUMNS, rows, caption=caption)


def _burn(burn: Burn, measured: Measurements) -> Iterator[Child]:
    yield element("p", f"{burn.rounds} complete rounds in {burn.duration_s:.0f} s ({burn.asked_s:.0f} s asked for).")
    if burn.wrong_count:
        shown = [
            element("li", f"WRONG in round {each.round + 1} (until {each.at_s:.0f} s): {each.text}")
            for each in burn.wrong
        ]
        more = burn.wrong_count - len(burn.wrong)
        yield element("ul", *shown, element("li", f"and {more} more") if more > 0 else None, class_="wrong")
    if burn.series:
        head = ("figure", "rank", "unit", "at first", "at last", "change", "lowest", "highest")
        yield table(head, (_course(series, measured) for series in burn.series), caption="Course over the rounds")
    if not isinstance(burn.counters, Missing) and burn.counters:
        yield table(
            ("GPU", "counters that grew", "not read"),
            (_counters(gpu) for gpu in burn.counters),
            caption="Counters over the burn",
        )
    if not isinstance(burn.kernel_events, Missing) and burn.kernel_events:
        yield element("h3", "New lines in the kernel log")
        yield lines("\n".join(event.text for event in burn.kernel_events))


def _course(series: Series, measured: Measurements) -> tuple[Child, ...]:
    early, late = series.early, series.late
    change = "-" if not early.median else f"{late.median / early.median - 1:+.1%}"
    who = "all" if series.rank is None else rank_name(measured, series.rank, long=True)
    extremes = (min(early.low, late.low), max(early.high, late.high))
    figures = (f"{value:.4g}" for value in (early.median, late.median))
    return (series.metric, who, series.unit, *figures, change, *(f"{value:.4g}" for value in extremes))


def _counters(gpu: GpuCounters) -> tuple[Child, ...]:
    grown = ", ".join(f"{name.replace('_', ' ')} +{count}" for name, count in gpu.growth.items())
    unread = ", ".join(f"{name.replace('_', ' ')}: {why.reason}" for name, why in gpu.unread.items())
    return f"GPU {gpu.index}", grown or "-", unread or "-"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.3f}"
