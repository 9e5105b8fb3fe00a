"""Rates of copies between GPUs and with the host, and of collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

import msgspec

from gpudoctor.facts.model.gpu import GpuPair
from gpudoctor.facts.model.measurements import Collective, Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.report.tables.devices import RankName
from gpudoctor.report.tables.table import NOT_KNOWN, Column, Table, cell
from gpudoctor.text.grouped import grouped
from gpudoctor.text.units import figure_text, size_text, time_text

Place = tuple[int, int]


class RateMatrix(msgspec.Struct, frozen=True):
    """GB/s by (row rank, column rank); `wrong`: data arrived changed; `through_host`: no peer-to-peer."""

    rates: dict[Place, float]
    size_bytes: int = 0
    wrong: frozenset[Place] = frozenset()
    through_host: frozenset[Place] = frozenset()

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for place in self.rates for rank in place})


def peer_matrix(measured: Measurements) -> RateMatrix:
    """Copies from the GPU of the row to that of the column, one direction at a time."""
    links = measured.peer_links
    return RateMatrix(
        {(link.source, link.target): link.gb_s for link in links},
        links[0].size_bytes if links else 0,
        frozenset((link.source, link.target) for link in links if link.wrong_elements),
        frozenset((link.source, link.target) for link in links if link.p2p is False),
    )


def both_ways_matrix(measured: Measurements) -> RateMatrix:
    """The sum of both directions at the same time, if it was measured."""
    both = {(link.source, link.target): known(link.both_ways_gb_s) for link in measured.peer_links}
    rates = {place: rate for place, rate in both.items() if rate is not None}
    return msgspec.structs.replace(peer_matrix(measured), rates=rates)


def pair_matrix(measured: Measurements) -> RateMatrix:
    """Send and receive between two ranks, each way; measured once per pair, and shown in both cells."""
    pairs = measured.pairs
    rates = {(pair.a, pair.b): pair.busbw_gb_s for pair in pairs}
    rates |= {(pair.b, pair.a): pair.busbw_gb_s for pair in pairs}
    wrong = [pair for pair in pairs if pair.wrong_ranks]
    places = frozenset(place for pair in wrong for place in ((pair.a, pair.b), (pair.b, pair.a)))
    return RateMatrix(rates, pairs[0].size_bytes if pairs else 0, places)


def way_of(pair: GpuPair | None) -> str:
    """NV18, PIX, PXB, PHB, NODE, SYS, or "-" if it is not known."""
    if pair is None:
        return "-"
    nvlinks = known(pair.nvlinks)
    return f"NV{nvlinks}" if nvlinks else known(pair.path) or "-"


def link_text(generation: float | Missing | None, width: float | Missing | None) -> str:
    """ "Gen5 x8"; a dash for what is not known."""
    return f"{cell(generation, 'Gen{:g}'.format)} x{cell(width, 'g')}"


def host_table(measured: Measurements, name: RankName, rate: str | Callable[[float], str]) -> Table:
    """Copies between each rank and the host in GB/s, alone and while all ranks copy."""
    titles = ("rank", "to GPU, alone", "from GPU, alone", "to GPU, all at once", "from GPU, all at once")
    rows = (
        (
            name(link.rank),
            cell(link.h2d_alone_gb_s, rate),
            cell(link.d2h_alone_gb_s, rate),
            cell(link.h2d_together_gb_s, rate),
            cell(link.d2h_together_gb_s, rate),
        )
        for link in measured.host_links
    )
    return Table(tuple(map(Column, titles)), tuple(rows))


def collective_table(done: Sequence[Collective]) -> Table:
    """A row per operation, a column per message size: busbw in GB/s and the median time of the slowest rank."""
    sizes = grouped((_power(row), row) for row in done)
    cells = {(row.op, _power(row)): f"{figure_text(row.busbw_gb_s)} ({time_text(row.time_us)})" for row in done}
    powers = sorted(sizes)
    columns = (Column("", 14, left=True), *(Column(_size_title(sizes[power]), 14) for power in powers))
    operations = dict.fromkeys(row.op for row in done)
    rows = ((op, *(cells.get((op, power), NOT_KNOWN) for power in powers)) for op in operations)
    return Table(columns, tuple(rows), gap=1)


def _power(row: Collective) -> int:
    """The column of a size: sizes that must be divisible by the number of ranks differ by a few bytes."""
    return round(log2(max(row.size_bytes, 1)))


def _size_title(same: Sequence[Collective]) -> str:
    largest = max(row.size_bytes for row in same)
    return (
        size_text(largest) if len({row.size_bytes for row in same}) == 1 else f"about {size_text(1 << _power(same[0]))}"
    )
