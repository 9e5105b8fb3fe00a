"""Costs of each parallel strategy: a row per variant with the largest value of all ranks, and one rank alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpudoctor.facts.model.measured_strategies import Strategies, StrategyMemory
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.report.tables.table import NOT_KNOWN, Column, Table
from gpudoctor.units import MIB, figure_text, time_text

_TITLES = ("step", "sent", "weights", "grads", "optim", "activations", "peak")  # short: 80 columns hold all of them


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
    titles = _TITLES if tried.device == "cuda" else _TITLES[:-1]
    rows = [_cells("one rank alone", alone.step_ms, (), [alone.memory])]
    for run in tried.runs:
        sent = [rank.communicated_bytes for rank in run.ranks]
        rows.append(_cells(run.variant, max(rank.step_ms for rank in run.ranks), sent, [r.memory for r in run.ranks]))
    columns = (Column("largest rank, MiB", left=True), *map(Column, titles))
    return [Table(columns, tuple(row[: len(columns)] for row in rows), title)]


def _cells(
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
