"""Rates of the data loader by number of workers, and of reads from storage by path."""

from __future__ import annotations

from gpudoctor.facts.model.measured_data import StorageRead
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import known
from gpudoctor.report.tables.table import Column, Table, cell
from gpudoctor.units import MIB, figure_text, seconds_text, short_size, three_digits, time_text

_TITLES = ("workers", "samples/s", "GB/s", "slowest rank", "first batch", "shm, MiB")  # 80 columns hold them


def loading_tables(measured: Measurements) -> list[Table]:
    """Rates of all ranks together, by num_workers; empty if nothing was loaded."""
    loading = measured.data_loading
    if loading is None:
        return []
    rows = []
    for step in loading.steps:
        rates = step.rates
        row = (rates.samples_per_s, rates.gb_s, rates.slowest_rank_gb_s) if rates is not None else (None, None, None)
        shm = None if rates is None else known(rates.shm_bytes)
        rows.append(
            (
                str(step.workers),
                *(cell(value, three_digits) for value in row),
                cell(None if rates is None else rates.first_batch_s, seconds_text),
                cell(None if shm is None else shm / MIB, three_digits),
            )
        )
    whence = "of --data" if loading.paths else "made for it, in the page cache"
    files = f"{loading.files} file{'s' if loading.files != 1 else ''}"
    size = short_size(round(loading.sample_bytes))
    title = f"data loader: batches of {loading.batch} samples of {size}, {files} {whence}"
    return [Table(tuple(map(Column, _TITLES)), tuple(rows), title)]


def storage_table(read: StorageRead) -> Table:
    """A row per pattern and number of readers: their total rate, and the time of one read."""
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
