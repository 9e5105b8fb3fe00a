"""What was read from storage, as a table a path."""

from __future__ import annotations

from gpudoctor.facts.model.measured_storage import StorageRead
from gpudoctor.report.tables.table import Column, Table
from gpudoctor.units import figure_text, short_size, time_text


def storage_table(read: StorageRead) -> Table:
    """A row for each pattern and number of readers: what they got together, and the time of one read."""
    columns = (Column("pattern", left=True), *(Column(name) for name in ("readers", "a read", "MB/s", "p50", "p99")))
    rows = tuple(
        (
            rate.pattern,
            str(rate.readers),
            short_size(rate.block_bytes),
            figure_text(rate.gb_s * 1e3),
            time_text(rate.p50_us),
            time_text(rate.p99_us),
        )
        for rate in read.rates
    )
    return Table(columns, rows, title=f"read from {read.path}")
