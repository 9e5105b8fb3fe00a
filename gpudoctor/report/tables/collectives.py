"""Bandwidth and time of the collectives: by operation and message size, and row by row as they ran."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from gpudoctor.facts.model.measurements import Collective
from gpudoctor.report.tables.table import NOT_KNOWN, Column, Table
from gpudoctor.units import exact_time_text, figure_text, short_figure, size_text, time_text


def collective_table(done: Sequence[Collective]) -> Table:
    """A row for each operation, a column for each size: busbw in GB/s and the median time of the slowest rank."""
    sizes: dict[int, list[Collective]] = {}
    for row in done:
        sizes.setdefault(_power(row), []).append(row)
    cells = {(row.op, _power(row)): f"{figure_text(row.busbw_gb_s)} ({time_text(row.time_us)})" for row in done}
    powers = sorted(sizes)
    columns = (Column("", 14, left=True), *(Column(_size_title(sizes[power]), 14) for power in powers))
    operations = dict.fromkeys(row.op for row in done)
    rows = ((op, *(cells.get((op, power), NOT_KNOWN) for power in powers)) for op in operations)
    return Table(columns, tuple(rows), gap=1)


def _power(row: Collective) -> int:
    """Rows of one column belong together: sizes that must divide among the ranks are a few bytes apart."""
    return round(log2(max(row.size_bytes, 1)))


def _size_title(same: Sequence[Collective]) -> str:
    largest = max(row.size_bytes for row in same)
    return (
        size_text(largest) if len({row.size_bytes for row in same}) == 1 else f"about {size_text(1 << _power(same[0]))}"
    )


def run_table(done: Sequence[Collective]) -> Table:
    """A row for each operation at each size, in the order in which they ran, with the spread of the time."""
    columns = (
        Column("operation", 15, left=True),
        Column("size", 10),
        Column("busbw GB/s", 12),
        Column("time", 12),
        Column("+-", 10),
    )
    rows = (
        (
            row.op,
            size_text(round_size(row.size_bytes)),
            short_figure(row.busbw_gb_s),
            exact_time_text(row.time_us),
            exact_time_text(row.time_us_mad),
        )
        for row in done
    )
    return Table(columns, tuple(rows), gap=0)


def round_size(size_bytes: int) -> int:
    """The power of two that a size is meant to be: sizes that must divide among the ranks are a few bytes below."""
    near = 1 << max(size_bytes.bit_length() - 1, 0)
    return next((size for size in (near, near * 2) if abs(size - size_bytes) <= size // 64), size_bytes)
