"""The order in which pairs of ranks are measured, and merging of the collectives' samples. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from gpudoctor.facts.model.measurements import Collective, PairBandwidth
from gpudoctor.probes.runner.merge import median_deviation
from gpudoctor.probes.runner.messages import CollectiveSample, PairSample
from gpudoctor.text.grouped import grouped

Pair = tuple[int, int]


def rounds_of(count: int) -> list[list[Pair]]:
    """Every pair of `count` ranks or nodes once, in rounds of disjoint pairs: a round-robin tournament.

    Circle method: count - 1 rounds of count / 2 pairs; for an odd count, count rounds in each of which another one
    pauses. If the pairs run in this order and time runs out, all ranks have had equally many pairs, or one less.

    >>> rounds_of(4)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    >>> rounds_of(3)
    [[(1, 2)], [(0, 2)], [(0, 1)]]
    """
    places = list(range(count + count % 2))
    half = len(places) // 2
    rounds: list[list[Pair]] = []
    for _ in range(len(places) - 1):
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in facing if max(pair) < count])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def busbw_factor(op: str, world_size: int) -> float:
    """The factor busbw / algbw of nccl-tests, doc/PERFORMANCE.md. Raises KeyError for an operation not listed there.

    >>> busbw_factor("all_reduce", 4), busbw_factor("all_gather", 4), busbw_factor("sendrecv", 4)
    (1.5, 0.75, 1.0)
    """
    share_of_others = (world_size - 1) / world_size
    return {
        "all_reduce": 2 * share_of_others,
        "all_gather": share_of_others,
        "reduce_scatter": share_of_others,
        "all_to_all": share_of_others,
        "broadcast": 1.0,
        "sendrecv": 1.0,
    }[op]


def merged_collectives(samples: Mapping[int, Sequence[CollectiveSample]], world_size: int) -> tuple[Collective, ...]:
    """One Collective per operation and size that every rank delivered.

    A batch takes as long as its slowest rank; algbw = size / time, busbw = algbw x nccl-tests' factor.
    """
    if len(samples) < world_size:
        return ()
    rows = zip(*(samples[rank] for rank in range(world_size)), strict=False)
    return tuple(_collective(row, world_size) for row in rows)


def _collective(row: Sequence[CollectiveSample], world_size: int) -> Collective:
    first = row[0]
    slowest_us = _slowest_us(row)
    time_us = statistics.median(slowest_us)
    algbw = first.size_bytes / time_us / 1e3
    return Collective(
        op=first.op,
        size_bytes=first.size_bytes,
        dtype=first.dtype,
        iterations=len(slowest_us) * first.operations_per_batch,
        time_us=time_us,
        time_us_mad=median_deviation(slowest_us),
        algbw_gb_s=algbw,
        busbw_gb_s=algbw * busbw_factor(first.op, world_size),
        wrong_ranks=tuple(rank for rank, sample in enumerate(row) if sample.wrong_elements),
        missing_ranks=tuple(sorted({rank for sample in row for rank in sample.missing_ranks})),
    )


def merged_pairs(samples: Mapping[int, Sequence[PairSample]]) -> tuple[PairBandwidth, ...]:
    """One PairBandwidth per pair that both ranks delivered, with the figures of the faster pass.

    A result that was wrong in any pass stays wrong.
    """
    delivered = grouped(((sample.a, sample.b), (rank, sample)) for rank, its in samples.items() for sample in its)
    return tuple(
        _pair(list(zip(of_rank[a], of_rank[b], strict=False)))
        for (a, b), passes in sorted(delivered.items())
        if (of_rank := grouped(passes)).keys() == {a, b}
    )


def _pair(passes: Sequence[tuple[PairSample, PairSample]]) -> PairBandwidth:
    best = min(passes, key=lambda row: statistics.median(_slowest_us(row)))
    first = best[0]
    slowest_us = _slowest_us(best)
    time_us = statistics.median(slowest_us)
    wrong = {
        rank for row in passes for rank, sample in zip((first.a, first.b), row, strict=True) if sample.wrong_elements
    }
    return PairBandwidth(
        a=first.a,
        b=first.b,
        size_bytes=first.size_bytes,
        iterations=len(slowest_us) * first.operations_per_batch,
        time_us=time_us,
        time_us_mad=median_deviation(slowest_us),
        busbw_gb_s=first.size_bytes / time_us / 1e3,
        wrong_ranks=tuple(sorted(wrong)),
    )


def _slowest_us(row: Sequence[CollectiveSample] | Sequence[PairSample]) -> list[float]:
    return [max(times) for times in zip(*(sample.batch_us for sample in row), strict=True)]
