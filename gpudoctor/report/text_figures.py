"""The measurements of the probes as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap

from gpudoctor.facts.model.measured_hardware import ComputeRank
from gpudoctor.facts.model.measurements import Measurements, Training
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.telemetry import Burn, Series
from gpudoctor.report.tables.devices import (
    compute_table,
    growth_text,
    plain_name,
    sample_count,
    telemetry_table,
    training_table,
    training_words,
    wrong_text,
)
from gpudoctor.report.tables.links import (
    RateMatrix,
    both_ways_matrix,
    collective_table,
    host_table,
    pair_matrix,
    peer_matrix,
)
from gpudoctor.report.tables.table import NOT_KNOWN, Table, aligned, cell
from gpudoctor.report.tables.workloads import library_tables, loading_tables, storage_tables, strategy_tables
from gpudoctor.text.grouped import grouped
from gpudoctor.text.units import figure_text, mib_text, size_text, whole_mib_text

_WRONG_SHOWN = 5
_MATRIX_RANKS_MAX = 8


def figure_lines(measurements: Measurements) -> list[str]:
    """The figures of each probe, in the order in which they ran; empty if nothing was measured."""
    launch, of_libraries = measurements.launch, _titled(library_tables(measurements))
    storage = storage_tables(measurements)
    of_storage = [line for table in storage for line in (f"{table.title}:", *aligned(table, "  "))]
    if launch is None:
        return [*(["Measured in processes of their own:", *of_libraries] if of_libraries else []), *of_storage]
    kind = "CPU rank" if launch.backend == "gloo" else "GPU"
    kind += "s" if launch.world_size != 1 else ""
    seconds = "" if isinstance(launch.total_s, Missing) else f", {launch.total_s:.1f} s"
    lines = [f"Measured on {launch.world_size} {kind} ({launch.backend}, {launch.method}{seconds}):"]
    lines += collective_lines(measurements)
    lines += device_lines(measurements)
    if measurements.training is not None:
        lines += _training_lines(measurements.training)
    lines += _titled([*strategy_tables(measurements), *loading_tables(measurements)])
    lines += of_libraries
    if measurements.burn is not None:
        lines += _burn_lines(measurements.burn)
    lines += telemetry_lines(measurements)
    return lines + of_storage


def _training_lines(training: Training) -> list[str]:
    lines = ["  DDP train:", *(f"    {each}" for text in training_words(training) for each in wrap(text, 74))]
    for who, compute, wait, data, other, step, _, _, first, last in training_table(training, plain_name).rows:
        parts = f"compute {compute} + wait {wait} + data {data} + other {other} = {step} ms"
        lines.append(f"    {who}: {parts}, loss {first} -> {last}")
    return lines


def collective_lines(measurements: Measurements) -> list[str]:
    """A line per operation with busbw and time at each size, then the pairs; empty if none was measured."""
    done, lines = measurements.collectives, []
    if done:
        lines.append(f"  collectives in {done[0].dtype}: busbw in GB/s (median time of the slowest rank)")
        lines += aligned(collective_table(done), "    ")
    return lines + (_pair_lines(pair_matrix(measurements)) if measurements.pairs else [])


def _pair_lines(matrix: RateMatrix) -> list[str]:
    ranks = matrix.ranks
    rates = {(a, b): rate for (a, b), rate in matrix.rates.items() if a < b}
    title = f"  sendrecv of {size_text(matrix.size_bytes)} between two ranks, GB/s each way"
    if len(rates) == 1:
        return [f"{title}: {figure_text(*rates.values())}"]
    if len(ranks) > _MATRIX_RANKS_MAX:
        slowest = min(rates, key=lambda pair: rates[pair])
        span = f"{figure_text(min(rates.values()))} to {figure_text(max(rates.values()))}"
        return [f"{title}: {len(rates)} pairs: {span}, slowest {slowest[0]} - {slowest[1]}"]
    return [
        f"{title}:",
        *_square(ranks[:-1], ranks[1:], lambda a, b: "" if b <= a else cell(rates.get((a, b)), figure_text)),
    ]


def _square(rows: Sequence[int], columns: Sequence[int], at: Callable[[int, int], str]) -> list[str]:
    lines = [("", *map(str, columns)), *((str(row), *(at(row, column) for column in columns)) for row in rows)]
    return ["    " + "".join(f"{text:>8}" for text in line).rstrip() for line in lines]


def device_lines(measurements: Measurements) -> list[str]:
    """Host links, the matrix of copies between GPUs, and compute, a line per rank; empty if nothing was measured."""
    lines = []
    if measurements.host_links:
        size = mib_text(measurements.host_links[0].size_bytes)
        lines.append(f"  host copies of {size}, to and from the GPU (all at once):")
        for who, *rates in host_table(measurements, plain_name, ".2f").rows:
            lines.append("    {}: {} and {} GB/s ({} and {})".format(who, *rates))
    if measurements.peer_links:
        lines += _peer_lines(measurements)
    return lines + _compute_lines(measurements.compute)


def _peer_lines(measurements: Measurements) -> list[str]:
    matrix = peer_matrix(measurements)
    both, off = both_ways_matrix(measurements).rates.values(), len(matrix.through_host)
    notes = [f"both ways {min(both):.1f} to {max(both):.1f}"] if both else []
    notes += [f"peer-to-peer off in {off} of {len(matrix.rates)} directions"] if off else []
    title = "; ".join(["  copies from rank (row) to rank (column) in GB/s", *notes])
    rates, ranks = matrix.rates, matrix.ranks
    return [f"{title}:", *_square(ranks, ranks, lambda a, b: cell(rates.get((a, b)), ".1f"))]


def _compute_lines(ranks: Sequence[ComputeRank]) -> list[str]:
    lines = []
    rows = compute_table(ranks, plain_name, ".2f").rows
    for each, (who, products, copy, triad, repeats, bits, _) in zip(ranks, rows, strict=True):
        if each.gemms:
            lines.append(f"    {who}: products of {each.gemms[0].size}^3 in TFLOP/s: {products}")
        parts = [f"copy {copy}, triad {triad} GB/s"]
        covered = known(each.pattern_bytes)
        if covered is not None:
            parts.append(f"{each.pattern_passes} patterns over {whole_mib_text(covered)}")
        if bits != NOT_KNOWN:
            parts.append(f"bits {bits}{'' if repeats == 'same' else ' (not steady)'}")
        lines.append(f"    {who}: {'; '.join(parts)}")
    return ["  compute, all at the same time:", *lines] if lines else []


def _titled(tables: Iterable[Table]) -> list[str]:
    return [line for table in tables for line in (f"  {table.title}", *aligned(table, "    "))]


def telemetry_lines(measurements: Measurements) -> list[str]:
    """Telemetry of the train probe, else of the last sampled one, in 80 columns; empty if none was sampled."""
    sampled = [telemetry for telemetry in measurements.telemetry if any(gpu.samples for gpu in telemetry.gpus)]
    if not sampled:
        return []
    shown = next((telemetry for telemetry in sampled if telemetry.during == "train"), sampled[-1])
    lines = [f"  GPUs during {shown.during}, {sample_count(shown)} readings in {shown.duration_s:.1f} s (medians):"]
    lines += aligned(telemetry_table(shown), "  ")
    if shown.ended is not None:
        lines.append(f"    not sampled to the end: {shown.ended}")
    return lines


def _burn_lines(burn: Burn) -> list[str]:
    """The rounds, each figure early and late, wrong results by round, and counters."""
    lines = [f"  Burn: {burn.rounds} complete rounds in {burn.duration_s:.0f} s ({burn.asked_s:.0f} s asked for)"]
    by_metric = grouped((series.metric, series) for series in burn.series)
    lines += [f"    {_burn_metric(same)}" for same in by_metric.values()]
    lines += [f"    {wrong_text(wrong)}" for wrong in burn.wrong[:_WRONG_SHOWN]]
    if burn.wrong_count > _WRONG_SHOWN:
        lines.append(f"    and {burn.wrong_count - _WRONG_SHOWN} more results that were wrong")
    counters = () if isinstance(burn.counters, Missing) else burn.counters
    lines += [f"    GPU {gpu.index}: {growth_text(gpu) or 'no counter read'}" for gpu in counters]
    if not isinstance(burn.kernel_events, Missing) and burn.kernel_events:
        lines.append(f"    new lines on GPUs in the kernel log: {len(burn.kernel_events)}")
    return lines


def _burn_metric(same: Sequence[Series]) -> str:
    """One line for a metric: the figures of the rank that changed most."""
    most = max(same, key=lambda s: abs(s.late.median - s.early.median) / (s.early.median or 1.0))
    who = "" if most.rank is None else f" (rank {most.rank}"
    who += "" if most.rank is None else ", the most changed)" if len(same) > 1 else ")"
    return f"{most.metric}: {most.early.median:.4g} to {most.late.median:.4g} {most.unit}{who}"
