"""Statistics of slow ranks: which are slower than the others, in the sanity train and in runs of users."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import median
from typing import Literal

import msgspec

from gpudoctor.facts.model.measurements import LEAST_JUDGED_CYCLES, Training, TrainRank
from gpudoctor.facts.model.missing import known


class Thresholds(msgspec.Struct, frozen=True):
    """Ratios to the others' median, the smallest excess that counts, and the share of steps in which a rank is last.

    `data_excess_ms` is the smallest excess in fetching a batch. The limits of `train.balance` have the same names.
    """

    warn_ratio: float
    fail_ratio: float
    excess_ms: float
    last_in_share: float
    data_excess_ms: float


class Deviation(msgspec.Struct, frozen=True):
    """A rank, by its number, compared with the rest of its group.

    `verdict`: `even`; `warn` or `fail` (confirmed); `late` (computes like the others, but is last at the
    collective); or `noisy` (cannot be judged, for the reason in `why`).
    """

    rank: int
    ratio: float
    verdict: Literal["even", "warn", "fail", "late", "noisy"]
    why: str = ""


class SlowData(msgspec.Struct, frozen=True):
    """A rank whose batches arrive late; `ratio` is its time to fetch and compute over the others' median."""

    rank: TrainRank
    usual_ms: float
    ratio: float
    verdict: Literal["warn", "fail"]


def deviations(training: Training, group: Sequence[TrainRank], limits: Thresholds) -> tuple[Deviation, ...]:
    """Compare each rank of a group of equal devices with the median of the others.

    On GPUs a ratio counts only if the excess is beyond noise (the smallest excess that counts, and 3 x its own MAD),
    the rank came last in most steps, a second block confirms it, and the clocks of the ranks were comparable.
    Source: a simulation of 20,000 healthy trainings, of which at 1.10 at most 1 in 10,000 was called slow. CPU ranks
    are compared cycle by cycle on the same cores instead (`by_cycles`).
    """
    found = []
    for rank in group:
        others = [r for r in group if r is not rank]
        if training.device != "cpu":
            found.append(_by_blocks(training, rank, others, limits))
            continue
        usual_ms = median(r.compute_ms for r in others)
        peers = [r.cycles_ms for r in others] if training.rotated else []
        found.append(by_cycles(rank.rank, rank.cycles_ms, peers, limits, _over(rank.compute_ms, usual_ms)))
    return tuple(found)


def slow_data(group: Sequence[TrainRank], limits: Thresholds) -> tuple[SlowData, ...]:
    """The ranks whose batches arrive so late that the others would wait for them."""
    found = []
    for rank in group:
        others = [r for r in group if r is not rank]
        usual_ms = median(r.data_ms for r in others)
        ratio = _over(rank.data_ms + rank.compute_ms, median(r.data_ms + r.compute_ms for r in others))
        computes = _over(rank.compute_ms, median(r.compute_ms for r in others))
        if (
            min(ratio, ratio / max(computes, 1.0)) >= limits.warn_ratio
            and rank.data_ms - usual_ms >= limits.data_excess_ms
            and (known(rank.slowest_data_share) or 0.0) >= limits.last_in_share
        ):
            found.append(SlowData(rank, usual_ms, ratio, "fail" if ratio >= limits.fail_ratio else "warn"))
    return tuple(found)


def _by_blocks(training: Training, rank: TrainRank, others: list[TrainRank], limits: Thresholds) -> Deviation:
    usual_ms = median(r.compute_ms for r in others)
    ratio = _over(rank.compute_ms, usual_ms)
    usual_again_ms = median(r.compute_again_ms for r in others)
    again = _over(rank.compute_again_ms, usual_again_ms)
    noise_ms = max(limits.excess_ms, 3 * rank.compute_mad_ms)
    clocks_agree = known(training.clock_invariant_ok) is True
    if ratio < limits.warn_ratio:
        if again >= limits.warn_ratio and rank.compute_again_ms - usual_again_ms >= noise_ms:
            return Deviation(rank.rank, ratio, "noisy", f"a second block showed {again:.2f} x")
        late_ms = rank.lateness_ms - median(r.lateness_ms for r in others)
        least_ms = max(limits.excess_ms, (limits.warn_ratio - 1) * usual_ms)
        if clocks_agree and rank.last_in_share >= limits.last_in_share and late_ms >= least_ms:
            return Deviation(rank.rank, ratio, "late", f"{late_ms:.1f} ms after the others")
        return Deviation(rank.rank, ratio, "even")
    lacking = []
    if rank.compute_ms - usual_ms < noise_ms:
        lacking.append(f"the difference is within its own noise (MAD {rank.compute_mad_ms:.2g} ms)")
    if rank.last_in_share < limits.last_in_share:
        lacking.append(f"it came last in {rank.last_in_share:.0%} of the steps only")
    if again < limits.warn_ratio:
        lacking.append(f"a second block showed {again:.2f} x")
    if not clocks_agree:
        lacking.append("the ranks' clocks did not agree")
    if lacking:
        return Deviation(rank.rank, ratio, "noisy", "; ".join(lacking))
    return Deviation(rank.rank, ratio, "fail" if min(ratio, again) >= limits.fail_ratio else "warn")


def by_cycles(
    rank: int, own_ms: Sequence[float], peers_ms: Sequence[Sequence[float]], limits: Thresholds, whole_ratio: float
) -> Deviation:
    """Compare ranks by the median ratio over the cycles, each of all ranks at the same time, and its uncertainty.

    The speed of a core cancels out where in each cycle every rank ran on every core. The uncertainty is two standard
    errors of the median: 2 x 1.25 x 1.4826 MAD / sqrt(cycles). With too few cycles, or none that all ranks took part
    in, it is `whole_ratio`, which tells nothing for sure. Texts for users say "turns".
    """
    cycles = zip(own_ms, *peers_ms, strict=False) if peers_ms else ()
    logs = [log(own / median(usual)) for own, *usual in cycles if own > 0 and min(usual) > 0]
    if len(logs) < LEAST_JUDGED_CYCLES:
        return Deviation(rank, whole_ratio, "noisy", "the ranks could not take turns on the same cores")
    center = median(logs)
    ratio, again = exp(center), exp(median(logs[len(logs) // 2 :]))
    unsure = 2 * 1.25 * 1.4826 * median(abs(value - center) for value in logs) / sqrt(len(logs))
    lower, upper = exp(center - unsure), exp(center + unsure)
    if upper < limits.warn_ratio:
        return Deviation(rank, ratio, "even")
    slowest = sum(value > 0 for value in logs) / len(logs)
    half_way = (1 + limits.warn_ratio) / 2
    if ratio >= limits.warn_ratio and min(lower, again) >= half_way and slowest >= limits.last_in_share:
        return Deviation(rank, ratio, "fail" if ratio >= limits.fail_ratio else "warn")
    why = (
        f"that is uncertain ({lower:.2f} to {upper:.2f} x), the second half of {len(logs)} turns shows {again:.2f} x, "
        f"and it was slowest in {slowest:.0%} of them"
    )
    return Deviation(rank, ratio, "noisy", why)


def _over(value_ms: float, usual_ms: float) -> float:
    return value_ms / usual_ms if usual_ms > 0 else 1.0
