"""The samples of all ranks, put together: pure functions, without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpudoctor.facts.measurements import Collective, Device, Training, TrainRank
from gpudoctor.facts.missing import Missing
from gpudoctor.probes.messages import CollectiveSample, TrainSample

# Where lateness + wait differs by more than both of these between ranks, arrival times say
# nothing: probes.md of the design's reference, section 3.3.
INVARIANT_SHARE = 0.10
INVARIANT_MS = 0.3

_ENDS = 3  # losses averaged at the beginning and at the end


def merged_collectives(samples: Mapping[int, Sequence[CollectiveSample]], world_size: int) -> tuple[Collective, ...]:
    """One Collective for each size that every rank delivered.

    The time of a batch is that of its slowest rank; algbw = size / time, and busbw of all_reduce =
    algbw x 2(n-1)/n (nccl-tests, doc/PERFORMANCE.md).
    """
    if len(samples) < world_size:
        return ()
    rows = zip(*(samples[rank] for rank in range(world_size)), strict=False)
    return tuple(_collective(row, world_size) for row in rows)


def _collective(row: Sequence[CollectiveSample], world_size: int) -> Collective:
    first = row[0]
    slowest_us = [max(times) for times in zip(*(sample.batch_us for sample in row), strict=True)]
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
        busbw_gb_s=algbw * 2 * (world_size - 1) / world_size,
        wrong_ranks=tuple(rank for rank, sample in enumerate(row) if sample.wrong_elements),
        missing_ranks=tuple(sorted({rank for sample in row for rank in sample.missing_ranks})),
    )


def merged_training(samples: Mapping[int, TrainSample], world_size: int, device: Device) -> Training | None:
    """The whole train, or None where not every rank delivered."""
    if len(samples) < world_size:
        return None
    row = [samples[rank] for rank in range(world_size)]
    zero = row[0]
    arrivals = _by_step(row, "arrived_ns")
    departures = _by_step(row, "left_ns")
    # On a shared CPU the scheduler decides who arrives last, so there the CPU time of the step does.
    order = _by_step(row, "compute_ms") if device == "cpu" else arrivals
    ranks = tuple(_train_rank(rank, sample, order, arrivals, departures) for rank, sample in enumerate(row))
    slowest_step_s = max(rank.step_ms for rank in ranks) / 1e3
    contributions = [sample.contribution_ok for sample in row]
    return Training(
        device=device,
        world_size=world_size,
        steps=len(arrivals),
        batch_per_rank=zero.batch_per_rank,
        parameters=zero.parameters,
        gradient_bytes=zero.gradient_bytes,
        ranks=ranks,
        contribution_ok=Missing("too many ranks for the code", "unsupported")
        if None in contributions
        else all(contributions),
        gradient_error=zero.gradient_error
        if zero.gradient_error is not None and math.isfinite(zero.gradient_error)
        else Missing("the gradient was not finite", "failed"),
        clock_invariant_ok=_invariant(arrivals, departures) if world_size > 1 else Missing("one rank waits for nobody"),
        solo_step_ms=zero.solo_step_ms if zero.solo_step_ms is not None else Missing("not measured", "failed"),
        samples_per_s=world_size * zero.batch_per_rank / slowest_step_s,
    )


def _by_step(row: Sequence[TrainSample], field: str) -> list[tuple[Any, ...]]:
    """For each step the figures or stamps of all ranks, in rank order; CLOCK_MONOTONIC is one for the whole node."""
    columns = [[stamp for block in sample.blocks for stamp in getattr(block, field)] for sample in row]
    return list(zip(*columns, strict=True))


def _train_rank(
    rank: int,
    sample: TrainSample,
    order: list[tuple[Any, ...]],
    arrivals: list[tuple[int, ...]],
    departures: list[tuple[int, ...]],
) -> TrainRank:
    first, *others = sample.blocks
    # The last to arrive waits only for the transfer itself.
    waits_ms = []
    for arrived, left in zip(arrivals, departures, strict=True):
        durations = [end - start for start, end in zip(arrived, left, strict=True)]
        waits_ms.append((durations[rank] - min(durations)) / 1e6)
    return TrainRank(
        rank=rank,
        compute_ms=statistics.median(first.compute_ms),
        compute_mad_ms=median_deviation(first.compute_ms),
        compute_again_ms=statistics.median(t for block in others for t in block.compute_ms),
        lateness_ms=statistics.median((arrived[rank] - min(arrived)) / 1e6 for arrived in arrivals),
        last_in_share=sum(step[rank] == max(step) for step in order) / len(order),
        wait_ms=statistics.median(waits_ms),
        data_ms=_median_of(sample, "data_ms"),
        host_ms=_median_of(sample, "host_ms"),
        step_ms=_median_of(sample, "step_ms"),
        loss_first=_mean_loss(sample.losses[:_ENDS]),
        loss_last=_mean_loss(sample.losses[-_ENDS:]),
        nonfinite_step=next((step for step, loss in enumerate(sample.losses, 1) if loss is None), None),
        memory_peak_mib=sample.memory_peak_mib
        if sample.memory_peak_mib is not None
        else Missing("CPU ranks have no memory of their own"),
        weights_sha256=sample.weights_sha256,
    )


def _median_of(sample: TrainSample, field: str) -> float:
    return float(statistics.median(t for block in sample.blocks for t in getattr(block, field)))


def _mean_loss(losses: Iterable[float | None]) -> float | None:
    finite = list(losses)
    return None if None in finite else statistics.fmean(loss for loss in finite if loss is not None)


def _invariant(arrivals: list[tuple[int, ...]], departures: list[tuple[int, ...]]) -> bool:
    """All ranks leave a collective together: lateness + time in it is the same on all, within the tolerance."""
    spreads = [(max(left) - min(left)) / 1e6 for left in departures]
    whole = [(max(left) - min(arrived)) / 1e6 for arrived, left in zip(arrivals, departures, strict=True)]
    return statistics.median(spreads) <= max(INVARIANT_MS, INVARIANT_SHARE * statistics.median(whole))


def median_deviation(values: Sequence[float]) -> float:
    """Median absolute deviation from the median, in the unit of the values."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)
