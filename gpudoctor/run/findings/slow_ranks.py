"""Which ranks make the others wait, and with what: the comparison that the sanity train makes, on the user's steps.

In synchronous training all ranks take equally long, because they wait for the slowest; so what is compared is the time
in which a rank did not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Literal

import msgspec

from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.train.straggler import Deviation, Thresholds, deviations
from gpudoctor.facts.model.measurements import Training, TrainRank
from gpudoctor.run.observer.layout import BACKWARD, BETWEEN, FORWARD, OPTIMIZER, PHASES
from gpudoctor.run.step_series import Step, turns
from gpudoctor.run.watched import Watched, WatchedRank

_SIMULATED = "as train.balance: simulation of 20 000 runs, false alarms at most 0.01 % at 1.10"
WARN_RATIO = Limit(1.10, "of the others' median", _SIMULATED, name="warn_ratio")
LAST_IN_SHARE = Limit(0.8, "of the turns", "as train.balance: an innocent rank is slowest in 1 of n", name="last_in_share")
LIMITS = (WARN_RATIO, LAST_IN_SHARE)
MOST_TURNS = 20
LEAST_TURNS = 6
_STEPS_A_TURN = 3
LEAST_STEPS = LEAST_TURNS * _STEPS_A_TURN
_LEAST_EXCESS_MS = 0.3
_LEAST_OWN_RATIO = 1.03  # what makes no difference to the whole is no finding
_THRESHOLDS = Thresholds(WARN_RATIO.value, 9.0, _LEAST_EXCESS_MS, LAST_IN_SHARE.value, _LEAST_EXCESS_MS)

Cause = Literal["compute", "batch", "data", "host", "cpu", "blocked"]


class SlowRank(msgspec.Struct, frozen=True):
    """A rank that others wait for. `excess_ms` a step of the part that `cause` names, which takes `own_ms`, others `usual_ms`.

    `cpu`: it waits for a CPU core; `blocked`: it computes no more than others, and stands still meanwhile. `phase` is
    where most of the excess lies.
    """

    rank: WatchedRank
    ratio: float
    cause: Cause
    own_ms: float
    usual_ms: float
    phase: str
    mean: Step

    @property
    def excess_ms(self) -> float:
        return self.own_ms - self.usual_ms


class Comparison(msgspec.Struct, frozen=True):
    """`slow` ranks; `unsure` ones, that seem slow without being so steadily; the turns compared, 0 if too few steps."""

    slow: tuple[SlowRank, ...]
    unsure: tuple[Deviation, ...]
    turns: int
    largest_ratio: float = 1.0


def compared(watched: Watched) -> Comparison:
    """Compare the ranks of a run."""
    ranks = [rank for rank in watched.ranks if rank.steps]
    steps = min((len(rank.steps) for rank in ranks), default=0)
    if len(ranks) < 2 or steps < LEAST_STEPS:
        return Comparison((), (), 0)
    count = min(MOST_TURNS, steps // _STEPS_A_TURN)
    each = {rank.rank: turns(rank.steps, count) for rank in ranks}
    by_own = _deviations(each, lambda step: step.own_ms)
    tests = [by_own]
    on_cpu = all(rank.gpu is None for rank in ranks)
    if on_cpu:
        tests.append(_deviations(each, lambda step: step.compute_cpu_ms))
    tests.append(_deviations(each, lambda step: step.compute_ms))
    slow: list[SlowRank] = []
    unsure: list[Deviation] = []
    for place, rank in enumerate(ranks):
        own = by_own[place]
        confirmed = next((test[place] for test in tests if test[place].verdict in ("warn", "fail")), None)
        if confirmed is not None and own.ratio >= _LEAST_OWN_RATIO:
            others = [other for other in ranks if other is not rank]
            slow.append(_named(rank, max(confirmed.ratio, own.ratio), each[rank.rank], [each[o.rank] for o in others], others))
        elif own.verdict == "noisy" and own.ratio >= WARN_RATIO.value:
            unsure.append(own)
    return Comparison(tuple(slow), tuple(unsure), count, max(d.ratio for d in by_own))


def _deviations(each: dict[int, list[Step]], of: Callable[[Step], float]) -> tuple[Deviation, ...]:
    """The sanity train's comparison, turn by turn."""
    ranks = []
    for rank, its_turns in each.items():
        values = tuple(of(turn) for turn in its_turns)
        again = median(values[len(values) // 2 :])
        ranks.append(
            TrainRank(
                rank=rank, compute_ms=median(values), compute_mad_ms=0.0, compute_again_ms=again, lateness_ms=0.0,
                last_in_share=0.0, wait_ms=0.0, data_ms=0.0, host_ms=0.0, step_ms=0.0, loss_first=None, loss_last=None,
                cycles_ms=values,
            )
        )  # fmt: skip
    # all ranks are seen in each turn, as CPU ranks of the sanity train are, whatever they compute on
    training = Training("cpu", len(ranks), 0, 0, 0, 0, tuple(ranks), rotated=True)
    return deviations(training, training.ranks, _THRESHOLDS)


def _named(
    rank: WatchedRank, ratio: float, own: Sequence[Step], peers: Sequence[Sequence[Step]], others: Sequence[WatchedRank]
) -> SlowRank:
    """The part of the step in which the excess lies, and why it takes longer."""

    def both(of: Callable[[Step], float]) -> tuple[float, float]:
        return median(map(of, own)), median(median(map(of, peer)) for peer in peers)

    parts: dict[Cause, tuple[float, float]] = {
        "compute": both(lambda step: step.compute_ms),
        "data": both(lambda step: step.data_ms),
        "host": both(lambda step: step.host_ms),
    }
    cause = max(parts, key=lambda part: parts[part][0] - parts[part][1])
    own_ms, usual_ms = parts[cause]
    phase = cause
    if cause == "compute":
        excess = {PHASES[p]: both(lambda step, p=p: step.wall_ms[p]) for p in (FORWARD, BACKWARD, OPTIMIZER, BETWEEN)}  # type: ignore[misc]
        name = max(excess, key=lambda part: excess[part][0] - excess[part][1])
        cause, phase = _why_compute(rank, own_ms, usual_ms, both, others), name
    return SlowRank(rank, ratio, cause, own_ms, usual_ms, str(phase), own[len(own) // 2])


def _why_compute(
    rank: WatchedRank,
    own_ms: float,
    usual_ms: float,
    both: Callable[[Callable[[Step], float]], tuple[float, float]],
    others: Sequence[WatchedRank],
) -> Cause:
    excess_ms = own_ms - usual_ms
    size, usual_size = both(lambda step: step.elements)
    if usual_size and size / usual_size - 1 >= max(0.05, 0.4 * (own_ms / usual_ms - 1 if usual_ms else 0)):
        return "batch"
    if rank.gpu is not None:
        return "compute"
    cpu_ms, usual_cpu_ms = both(lambda step: step.compute_cpu_ms)
    if cpu_ms - usual_cpu_ms >= 0.5 * excess_ms:
        return "compute"
    waits = [other.cpu_wait_ms for other in others if other.cpu_wait_ms is not None]
    if rank.cpu_wait_ms is not None and waits and rank.cpu_wait_ms - fmean(waits) >= 0.4 * excess_ms:
        return "cpu"
    return "blocked"
