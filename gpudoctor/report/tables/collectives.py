"""Bandwidth and time of the collectives, by operation and message size."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from gpudoctor.facts.model.measurements import Collective
from gpudoctor.report.tables.table import NOT_KNOWN, Column, Table
from gpudoctor.units import figure_text, size_text, time_text


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
