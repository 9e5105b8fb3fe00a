"""Costs of each parallel strategy, rates of the data loader by number of workers, and of reads from storage by path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpudoctor.facts.model.measured_hardware import StorageRead
from gpudoctor.facts.model.measured_strategies import Strategies, StrategyMemory
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.report.tables.table import NOT_KNOWN, Column, Table, cell
from gpudoctor.text.units import MIB, counted, figure_text, seconds_text, short_size, three_digits, time_text

_COSTS = ("step", "sent", "weights", "grads", "optim", "activations", "peak")  # short: 80 columns hold all of them
_RATES = ("workers", "samples/s", "GB/s", "slowest rank", "first batch", "shm, MiB")  # 80 columns hold them


def strategy_tables(measured: Measurements) -> list[Table]:
    """Time, traffic and memory of a step under each strategy of torch; empty if none was tried."""
    return _table("strategies", measured.strategies)


def library_tables(measured: Measurements) -> list[Table]:
    """The same for DeepSpeed and TensorFlow, a table per library that was tried."""
    tried = [library for library in (measured.deepspeed, measured.tensorflow) if library is not None]
    return [table for each in tried for table in _table(f"{each.library} {each.version}", each.strategies)]


def _table(name: str, tried: Strategies | None) -> list[Table]:
    if tried is None or not tried.runs:
        return []
    shape, alone = tried.shape, tried.reference
    title = (
        f"{name}: {tried.steps} steps of {alone.parameters / 1e6:.2f} M parameters "
        f"on {shape.batch} x {shape.sequence} tokens"
    )
    # no peak on CPU ranks: nothing measures it there
    titles = _COSTS if tried.device == "cuda" else _COSTS[:-1]
    rows = [_costs("one rank alone", alone.step_ms, (), [alone.memory])]
    for run in tried.runs:
        sent = [rank.communicated_bytes for rank in run.ranks]
        rows.append(_costs(run.variant, max(rank.step_ms for rank in run.ranks), sent, [r.memory for r in run.ranks]))
    columns = (Column("largest rank, MiB", left=True), *map(Column, titles))
    return [Table(columns, tuple(row[: len(columns)] for row in rows), title)]


def _costs(
    name: str, step_ms: float, sent: Iterable[int | Missing], memory: Sequence[StrategyMemory]
) -> tuple[str, ...]:
    return (
        name,
        time_text(step_ms * 1e3),
        _most(sent),
        _most(rank.parameters_bytes for rank in memory),
        _most(rank.gradients_bytes for rank in memory),
        _most(rank.optimizer_bytes for rank in memory),
        _most(rank.activations_bytes for rank in memory),
        _most(rank.peak_bytes for rank in memory),
    )


def _most(sizes_bytes: Iterable[int | Missing]) -> str:
    known = [size for size in sizes_bytes if isinstance(size, int)]
    return figure_text(max(known) / MIB) if known else NOT_KNOWN


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
    files = counted(loading.files, "file")
    size = short_size(round(loading.sample_bytes))
    title = f"data loader: batches of {loading.batch} samples of {size}, {files} {whence}"
    return [Table(tuple(map(Column, _RATES)), tuple(rows), title)]


def storage_tables(measured: Measurements) -> list[Table]:
    """A table for each path that was read."""
    return [_storage_table(read) for read in measured.storage if read.rates]


def _storage_table(read: StorageRead) -> Table:
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
    return Table(columns, rows, title=f"Read from {read.path}, readers together")
