"""What each parallel strategy cost, in lines for people: a row for each variant, the largest of all ranks."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from gpudoctor.facts.model.measured_strategies import Strategies, StrategyMemory
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.units import figure_text, time_text

_TITLES = ("step", "sent", "weights", "grads", "optim", "activations", "peak")  # short: 80 columns hold all of them
_GAP = 2


def strategy_lines(measurements: Measurements) -> list[str]:
    """Time, traffic and memory of a step under each strategy, beside one rank alone; empty where none was tried."""
    tried = measurements.strategies
    if tried is None or not tried.runs:
        return []
    shape = tried.shape
    head = (
        f"  strategies: {tried.steps} steps of {tried.reference.parameters / 1e6:.2f} M parameters "
        f"on {shape.batch} x {shape.sequence} tokens"
    )
    alone = (time_text(tried.reference.step_ms * 1e3), "-", *_memory([tried.reference.memory], tried))
    rows = [("largest rank, MiB", _titles(tried)), ("one rank alone", alone)]
    for run in tried.runs:
        sent = [rank.communicated_bytes for rank in run.ranks if isinstance(rank.communicated_bytes, int)]
        step = time_text(max(rank.step_ms for rank in run.ranks) * 1e3)
        memory = _memory([rank.memory for rank in run.ranks], tried)
        rows.append((run.variant, (step, _mib(max(sent)) if sent else "-", *memory)))
    widths = [_GAP + max(map(len, column)) for column in zip(*(cells for _, cells in rows), strict=True)]
    names = max(len(name) for name, _ in rows)
    return [head, *(f"    {name:<{names}}{_aligned(cells, widths)}" for name, cells in rows)]


def library_lines(measurements: Measurements) -> list[str]:
    """The same for DeepSpeed and TensorFlow, a table for each library that was tried; empty if none was."""
    lines: list[str] = []
    for library in (measurements.deepspeed, measurements.tensorflow):
        if library is not None:
            head, *rows = strategy_lines(replace(measurements, strategies=library.strategies)) or [""]
            lines += [head.replace("strategies:", f"{library.library} {library.version}:", 1), *rows]
    return [line for line in lines if line]


def _aligned(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _titles(tried: Strategies) -> tuple[str, ...]:
    # CPU ranks have no peak: nothing counts it
    return _TITLES if tried.device == "cuda" else _TITLES[:-1]


def _memory(ranks: list[StrategyMemory], tried: Strategies) -> tuple[str, ...]:
    columns: list[Iterable[int | Missing]] = [
        [rank.parameters_bytes for rank in ranks],
        [rank.gradients_bytes for rank in ranks],
        [rank.optimizer_bytes for rank in ranks],
        [rank.activations_bytes for rank in ranks],
    ]
    if tried.device == "cuda":
        columns.append([rank.peak_bytes for rank in ranks])
    return tuple(_most(column) for column in columns)


def _most(values: Iterable[int | Missing]) -> str:
    known = [value for value in values if not isinstance(value, Missing)]
    return _mib(max(known)) if known else "-"


def _mib(size_bytes: int) -> str:
    return figure_text(size_bytes / 2**20)
