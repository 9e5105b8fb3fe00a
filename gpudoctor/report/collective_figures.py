"""What the collectives measured, in lines for people: a table by size, and the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from gpudoctor.facts.model.measurements import Collective, Measurements, PairBandwidth
from gpudoctor.units import figure_text, size_text, time_text

_MATRIX_RANKS_MAX = 8


def collective_lines(measurements: Measurements) -> list[str]:
    """A line for each operation, with busbw and time at each size, and the pairs; empty where none was measured."""
    return [*_operation_lines(measurements.collectives), *_pair_lines(measurements.pairs)]


def _operation_lines(done: Sequence[Collective]) -> list[str]:
    if not done:
        return []
    columns = sorted({column_of(row) for row in done})
    titles = [_title([row.size_bytes for row in done if column_of(row) == column]) for column in columns]
    lines = [f"  collectives in {done[0].dtype}: busbw in GB/s (median time of the slowest rank)"]
    lines.append("    " + " " * 14 + "".join(f"{title:>15}" for title in titles))
    for op in dict.fromkeys(row.op for row in done):
        cells = {
            column_of(row): f"{figure_text(row.busbw_gb_s)} ({time_text(row.time_us)})" for row in done if row.op == op
        }
        lines.append(f"    {op:<14}" + "".join(f"{cells.get(column, '-'):>15}" for column in columns))
    return lines


def column_of(row: Collective) -> int:
    """Rows of one column belong together: sizes that must divide among the ranks are a few bytes apart."""
    return round(log2(max(row.size_bytes, 1)))


def _title(sizes: Sequence[int]) -> str:
    return size_text(max(sizes)) if len(set(sizes)) == 1 else f"about {size_text(1 << round(log2(max(sizes))))}"


def _pair_lines(pairs: Sequence[PairBandwidth]) -> list[str]:
    if not pairs:
        return []
    rates = {(pair.a, pair.b): pair.busbw_gb_s for pair in pairs}
    ranks = sorted({rank for pair in rates for rank in pair})
    title = f"  sendrecv of {size_text(pairs[0].size_bytes)} between two ranks, GB/s each way"
    if len(ranks) > _MATRIX_RANKS_MAX or len(ranks) == 2:
        slowest = min(rates, key=lambda pair: rates[pair])
        span = f"{figure_text(min(rates.values()))} to {figure_text(max(rates.values()))}" if len(rates) > 1 else ""
        words = (
            f"{len(rates)} pairs: {span}, slowest {slowest[0]} - {slowest[1]}" if span else figure_text(rates[slowest])
        )
        return [f"{title}: {words}"]
    lines = [f"{title}:", "    " + "".join(f"{rank:>8}" for rank in ("", *ranks[1:]))]
    for a in ranks[:-1]:
        cells = ("" if b <= a else figure_text(rates[a, b]) if (a, b) in rates else "-" for b in ranks[1:])
        lines.append("    " + "".join(f"{cell:>8}" for cell in (str(a), *cells)).rstrip())
    return lines
