"""Merges what all ranks report of torch, training, strategies and data loading: pure functions, without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gpudoctor.facts.model.measured_hardware import DataLoading, LoaderCopies, LoaderRates, LoaderStep
from gpudoctor.facts.model.measured_strategies import Strategies, StrategyRun
from gpudoctor.facts.model.measurements import BucketStep, Device, TorchView, Training, TrainRank
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner import messages
from gpudoctor.probes.runner.messages import TrainSample

# If lateness + wait differs between ranks by more than both of these, arrival times are meaningless
INVARIANT_SHARE = 0.10
INVARIANT_MS = 0.3

_ENDS = 3  # losses averaged at the beginning and at the end


def merged_torch_view(views: Mapping[int, TorchView], backend: Literal["nccl", "gloo"]) -> TorchView | None:
    """The view of torch in all ranks, by rank; None if no rank has reported one.

    A GPU rank sees its own GPU by UUID, and for link copies the others too, so what the ranks saw is merged.
    """
    row = [views[rank] for rank in sorted(views)]
    if not row or backend == "gloo":
        return row[0] if row else None
    unread = [view.visible_uuids for view in row if isinstance(view.visible_uuids, Missing)]
    opened = [uuid for view in row if not isinstance(view.visible_uuids, Missing) for uuid in view.visible_uuids]
    seen = tuple(dict.fromkeys(opened))
    counts = [view.device_count for view in row]
    # without UUIDs: each rank saw its own GPU, or all ranks saw the same ones
    count = max(counts) if max(counts) > 1 else sum(counts)
    return TorchView(
        torch=row[0].torch,
        cuda=row[0].cuda,
        nccl=row[0].nccl,
        cuda_available=all(view.cuda_available for view in row),
        device_count=len(seen) if seen and not unread else count,
        visible_uuids=unread[0] if unread else seen,
        error=next((view.error for view in row if view.error is not None), None),
    )


def merged_training(samples: Mapping[int, TrainSample], world_size: int, device: Device) -> Training | None:
    """The training over all ranks; None unless every rank delivered a sample."""
    if len(samples) < world_size:
        return None
    row = [samples[rank] for rank in range(world_size)]
    zero = row[0]
    arrivals, departures = _by_step(row, "arrived_ns"), _by_step(row, "left_ns")
    # On a shared CPU the scheduler decides which rank arrives last, so CPU ranks are ordered by CPU time instead.
    order = _by_step(row, "compute_ms") if device == "cpu" else arrivals
    fetches = _by_step(row, "data_ms")
    ranks = tuple(_train_rank(rank, sample, order, arrivals, departures, fetches) for rank, sample in enumerate(row))
    steady_ms = max(sample.steady_step_ms for sample in row)
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
        gradient_error=Missing("the gradient was not finite", "failed")
        if zero.gradient_error is None
        else zero.gradient_error,
        clock_invariant_ok=_invariant(arrivals, departures) if world_size > 1 else Missing("one rank waits for nobody"),
        solo_step_ms=zero.solo_step_ms,
        samples_per_s=world_size * zero.batch_per_rank / steady_ms * 1e3,
        steady_step_ms=steady_ms,
        rotated=all(sample.rotated for sample in row),
        buckets=_buckets(row),
        swap=zero.swap,
    )


def _buckets(row: Sequence[TrainSample]) -> tuple[BucketStep, ...]:
    """A step takes as long as its slowest rank."""
    tried = zip(*(sample.buckets for sample in row), strict=True)
    return tuple(max(steps, key=lambda step: step.step_ms) for steps in tried)


def _by_step(row: Sequence[TrainSample], field: str) -> list[tuple[Any, ...]]:
    """For each step the values of all ranks, in rank order; CLOCK_MONOTONIC is the same for the whole node."""
    columns = [[stamp for block in sample.blocks for stamp in getattr(block, field)] for sample in row]
    return list(zip(*columns, strict=True))


def _train_rank(
    rank: int,
    sample: TrainSample,
    order: list[tuple[Any, ...]],
    arrivals: list[tuple[int, ...]],
    departures: list[tuple[int, ...]],
    fetches: list[tuple[float, ...]],
) -> TrainRank:
    compute, compute_mad, again = _compute(sample)
    # The last rank to arrive waits only for the transfer itself.
    waits_ms = []
    for arrived, left in zip(arrivals, departures, strict=True):
        durations = [end - start for start, end in zip(arrived, left, strict=True)]
        waits_ms.append((durations[rank] - min(durations)) / 1e6)
    return TrainRank(
        rank=rank,
        compute_ms=compute,
        compute_mad_ms=compute_mad,
        compute_again_ms=again,
        lateness_ms=statistics.median((arrived[rank] - min(arrived)) / 1e6 for arrived in arrivals),
        last_in_share=sum(step[rank] == max(step) for step in order) / len(order),
        wait_ms=statistics.median(waits_ms),
        data_ms=_median_of(sample, "data_ms"),
        host_ms=_median_of(sample, "host_ms"),
        step_ms=_median_of(sample, "step_ms"),
        loss_first=_mean_loss(sample.losses[:_ENDS]),
        loss_last=_mean_loss(sample.losses[-_ENDS:]),
        nonfinite_step=next((step for step, loss in enumerate(sample.losses, 1) if loss is None), None),
        memory_peak_mib=sample.memory_peak_mib,
        weights_sha256=sample.weights_sha256,
        cycles_ms=tuple(round(ms, 4) for ms in sample.cycles_ms),
        slowest_data_share=sum(step[rank] == max(step) for step in fetches) / len(fetches),
        solo_compute_ms=sample.solo_compute_ms,
    )


def _compute(sample: TrainSample) -> tuple[float, float, float]:
    """Median and MAD of the compute time, and the median of a second measurement of it, in ms.

    The second measurement is the second half of the turns over the cores, or all blocks of a GPU but the first.
    """
    if sample.rotated and len(sample.cycles_ms) > 1:
        half = len(sample.cycles_ms) // 2
        first, again = sample.cycles_ms[:half], sample.cycles_ms[half:]
        return statistics.median(first), median_deviation(sample.cycles_ms), statistics.median(again)
    block, *others = sample.blocks
    repeated = statistics.median(t for other in others for t in other.compute_ms)
    return statistics.median(block.compute_ms), median_deviation(block.compute_ms), repeated


def _median_of(sample: TrainSample, field: str) -> float:
    return float(statistics.median(t for block in sample.blocks for t in getattr(block, field)))


def _mean_loss(losses: Iterable[float | None]) -> float | None:
    finite = list(losses)
    return None if None in finite else statistics.fmean(loss for loss in finite if loss is not None)


def _invariant(arrivals: list[tuple[int, ...]], departures: list[tuple[int, ...]]) -> bool:
    """Whether all ranks left each collective together: lateness + time in it equal on all, within the tolerance."""
    spreads = [(max(left) - min(left)) / 1e6 for left in departures]
    whole = [(max(left) - min(arrived)) / 1e6 for arrived, left in zip(arrivals, departures, strict=True)]
    return statistics.median(spreads) <= max(INVARIANT_MS, INVARIANT_SHARE * statistics.median(whole))


def merged_strategies(
    samples: Iterable[tuple[int, messages.ProbeSample]], world_size: int, device: Device
) -> Strategies | None:
    """Every variant that any rank completed, in order of arrival; None if the strategies did not begin.

    `samples`: those of all probes, each with its rank.
    """
    shared: messages.StrategyShared | None = None
    variants: dict[tuple[str, str], dict[int, messages.StrategySample]] = {}
    not_run: dict[str, Missing] = {}
    for rank, sample in samples:
        if isinstance(sample, messages.StrategyShared):
            shared = sample
        elif isinstance(sample, messages.StrategySample):
            variants.setdefault((sample.strategy, sample.variant), {})[rank] = sample
        elif isinstance(sample, messages.StrategyLeftOut) and (
            # of several reasons prefer one of an actual attempt
            sample.strategy not in not_run or sample.why.kind == "failed"
        ):
            not_run[sample.strategy] = sample.why
    if shared is None:
        return None
    return Strategies(
        device=device,
        world_size=world_size,
        shape=shared.shape,
        steps=shared.steps,
        reference=shared.reference,
        runs=tuple(_strategy_run(strategy, variant, row) for (strategy, variant), row in variants.items()),
        not_run=not_run,
    )


def _strategy_run(strategy: str, variant: str, row: Mapping[int, messages.StrategySample]) -> StrategyRun:
    ranks = sorted(row)
    first = row[ranks[0]]
    largest: dict[str, float] = {}
    for rank in ranks:
        for name, value in row[rank].figures.items():
            largest[name] = max(value, largest.get(name, value))
    return StrategyRun(
        strategy=strategy,
        variant=variant,
        dtype=first.dtype,
        ranks=tuple(row[rank].result for rank in ranks),
        missing_weights=first.missing_weights,
        figures=largest,
    )


def merged_loading(found: Mapping[int, DataLoading], world_size: int) -> DataLoading | None:
    """The loading of all ranks, which ran at the same time; None unless every rank delivered."""
    if len(found) < world_size:
        return None
    row = [found[rank] for rank in range(world_size)]
    return msgspec.structs.replace(
        row[0],
        steps=tuple(_loader_step(steps) for steps in zip(*(each.steps for each in row), strict=True)),
        copies=_loader_copies(row),
        no_copies=next((each.no_copies for each in row if each.no_copies is not None), None),
        cpus=tuple(count for each in row for count in each.cpus),
        samples=sum(each.samples for each in row),
        unreadable=sum(each.unreadable for each in row),
        unreadable_why=next((each.unreadable_why for each in row if each.unreadable_why is not None), None),
    )


def _loader_step(of_ranks: Sequence[LoaderStep]) -> LoaderStep:
    rates: list[LoaderRates] = []
    for step in of_ranks:
        if step.rates is None:
            return step
        rates.append(step.rates)
    shm = [each.shm_bytes for each in rates if isinstance(each.shm_bytes, int)]
    together = LoaderRates(
        samples_per_s=sum(each.samples_per_s for each in rates),
        gb_s=sum(each.gb_s for each in rates),
        slowest_rank_gb_s=min(each.slowest_rank_gb_s for each in rates),
        first_batch_s=max(each.first_batch_s for each in rates),
        shm_bytes=max(shm) if shm else rates[0].shm_bytes,  # each rank sees the use by all of them
    )
    return msgspec.structs.replace(of_ranks[0], rates=together)


def _loader_copies(row: Sequence[DataLoading]) -> LoaderCopies | None:
    done = [each.copies for each in row if each.copies is not None]
    if len(done) < len(row):
        return None
    return LoaderCopies(
        done[0].workers, sum(each.pageable_gb_s for each in done), sum(each.pinned_gb_s for each in done)
    )


def median_deviation(values: Sequence[float]) -> float:
    """Median absolute deviation from the median (MAD), in the unit of the values."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def finite(value: float) -> float | None:
    """The value as JSON can represent it: None for infinity and NaN."""
    return value if math.isfinite(value) else None
