"""Which ranks make the others wait, and with what: the comparison that the sanity train makes, on the user's steps.

In synchronous training all ranks take equally long, because they wait for the slowest; so what is compared is the time
in which a rank did not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.train.straggler import Deviation, Thresholds, deviations
from gpudoctor.facts.model.measurements import Training, TrainRank
from gpudoctor.run.observer.layout import DATA, HOST, PHASES
from gpudoctor.run.step_series import COMPUTE, OWN, TimedStep, turns
from gpudoctor.run.watched import Watched, WatchedRank

_SIMULATED = "as train.balance: by simulation, at most 1 of 10,000 healthy trainings is called slow"
WARN_RATIO = Limit(1.10, "of the others' median", _SIMULATED, name="warn_ratio")
LAST_IN_SHARE = Limit(
    0.8, "of the turns", "as train.balance: an innocent rank is slowest in 1 of n", name="last_in_share"
)
LIMITS = (WARN_RATIO, LAST_IN_SHARE)
MOST_TURNS = 20
LEAST_TURNS = 6
_STEPS_A_TURN = 3
LEAST_STEPS = LEAST_TURNS * _STEPS_A_TURN
_LEAST_MS_OF_SHARES = 500.0  # below, one time slice of another process is a large share of all the time there is
_LEAST_EXCESS_MS = 0.3
_LEAST_OWN_RATIO = 1.03  # what makes no difference to the whole is no finding
_LEAST_STARVED_RATIO = 1.2  # on a busy machine all ranks lack CPUs now and then
_STARVED_SHARE = 0.6
_STARVED_RATIO = 1.5
# More is ready to run than there are cores. What shares caches and hyper-threads takes more CPU time for equal work:
# measured 1.2 x (two ranks, 18 other processes) and 1.15 x (four ranks on two cores, nothing else: a share of 0.5)
_CROWDED_SHARE = 0.3
_CROWDED_RATIO = 1.5
_THRESHOLDS = Thresholds(WARN_RATIO.value, 9.0, _LEAST_EXCESS_MS, LAST_IN_SHARE.value, _LEAST_EXCESS_MS)

Cause = Literal["compute", "batch", "data", "host", "cpu", "blocked"]
Of = Callable[[TimedStep], float]


class SlowRank(msgspec.Struct, frozen=True):
    """A rank that others wait for. The part of a step that `cause` names takes it `own_ms`, the others `usual_ms`.

    `cpu`: it waits for a CPU core; `blocked`: it computes no more than others, and stands still meanwhile. `phase` is
    where most of the excess lies.
    """

    rank: WatchedRank
    ratio: float
    cause: Cause
    own_ms: float
    usual_ms: float
    phase: str
    mean: TimedStep


class RankComparison(msgspec.Struct, frozen=True):
    """`slow` ranks; `unsure` ones, that seem slow without being so steadily; the turns compared, 0 if too few steps."""

    slow: tuple[SlowRank, ...]
    unsure: tuple[Deviation, ...]
    turns: int
    largest_ratio: float = 1.0


def ranks_with_shares(watched: Watched) -> list[WatchedRank]:
    """Ranks that trained for long enough to say what part of their step something takes."""
    return [
        rank
        for rank in watched.ranks
        if len(rank.steps) >= LEAST_STEPS and sum(step.step_ms for step in rank.steps) >= _LEAST_MS_OF_SHARES
    ]


def share_of_steps(rank: WatchedRank, phase: int) -> float:
    """What part of the rank's steps this phase takes; time in which it only lacked a CPU is left out of both."""
    whole_ms = sum(step.undisturbed_ms(*range(len(PHASES))) for step in rank.steps)
    return sum(step.undisturbed_ms(phase) for step in rank.steps) / whole_ms if whole_ms > 0 else 0.0


def share_without_cpu(steps: Sequence[TimedStep]) -> float:
    """The part of the time in which a rank needed a CPU and had none."""
    queued_ms = sum(step.own_queued_ms for step in steps)
    needed_ms = queued_ms + sum(step.cpu_ms[phase] for step in steps for phase in OWN)
    return queued_ms / needed_ms if needed_ms else 0.0


def compared(watched: Watched) -> RankComparison:
    """Compare the ranks of a run.

    What counts first is the time in which a rank had a CPU or needed none: on a busy machine the rest is chance. A
    rank that lacks a CPU much more than the others is named for that alone, if it may not use the same CPUs as they:
    which of equal processes the kernel lets wait is chance too.
    """
    ranks = [rank for rank in watched.ranks if rank.steps]
    steps = min((len(rank.steps) for rank in ranks), default=0)
    if len(ranks) < 2 or steps < LEAST_STEPS:
        return RankComparison((), (), 0)
    count = min(MOST_TURNS, steps // _STEPS_A_TURN)
    each = {rank.rank: turns(rank.steps, count) for rank in ranks}
    own = _deviations(each, lambda step: step.undisturbed_ms(*OWN))
    compute = _deviations(each, lambda step: step.undisturbed_ms(*COMPUTE))
    wall = _deviations(each, lambda step: step.own_ms)
    queued = min(share_without_cpu(its_turns) for its_turns in each.values())
    slow: list[SlowRank] = []
    unsure: list[Deviation] = []
    for place, rank in enumerate(ranks):
        pair = _Pair(each[rank.rank], [each[other.rank] for other in ranks if other is not rank])
        starved = any(other.cpus != rank.cpus for other in ranks) and _is_starved(pair)
        if starved and _is_confirmed(wall[place]) and wall[place].ratio >= _LEAST_STARVED_RATIO:
            own_ms, usual_ms = pair.both(lambda step: step.own_ms)
            slow.append(SlowRank(rank, wall[place].ratio, "cpu", own_ms, usual_ms, "own", pair.middle))
        elif _is_confirmed(own[place]) or (_is_confirmed(compute[place]) and own[place].ratio >= _LEAST_OWN_RATIO):
            found = _named(rank, max(own[place].ratio, compute[place].ratio), pair)
            if found.cause == "compute" and found.ratio < _CROWDED_RATIO and queued >= _CROWDED_SHARE:
                why = f"the ranks had no CPU for {queued:.0%} of the time in which they needed one"
                unsure.append(msgspec.structs.replace(own[place], ratio=found.ratio, verdict="noisy", why=why))
            else:
                slow.append(found)
        elif own[place].verdict == "noisy" and own[place].ratio >= WARN_RATIO.value:
            unsure.append(own[place])
    return RankComparison(tuple(slow), tuple(unsure), count, max(deviation.ratio for deviation in own))


class _Pair(NamedTuple):
    """The turns of a rank, and those of the others."""

    own: Sequence[TimedStep]
    peers: Sequence[Sequence[TimedStep]]

    def both(self, of: Of) -> tuple[float, float]:
        """The median of the rank's turns, and the median of those of the others."""
        return median(map(of, self.own)), median(median(map(of, peer)) for peer in self.peers)

    def excess(self, of: Of) -> float:
        own, usual = self.both(of)
        return own - usual

    @property
    def middle(self) -> TimedStep:
        return self.own[len(self.own) // 2]


def _is_confirmed(deviation: Deviation) -> bool:
    return deviation.verdict in ("warn", "fail")


def _is_starved(pair: _Pair) -> bool:
    """Whether it lacks a CPU much more than the others, for what it does: more work alone waits more too."""
    queued, usual = pair.both(lambda step: step.own_queued_ms / max(step.undisturbed_ms(*OWN), 0.001))
    excess_ms = pair.excess(lambda step: step.own_queued_ms)
    return queued >= _STARVED_RATIO * usual and excess_ms >= _STARVED_SHARE * pair.excess(lambda step: step.own_ms)


def _deviations(each: dict[int, list[TimedStep]], of: Callable[[TimedStep], float]) -> tuple[Deviation, ...]:
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


def _named(rank: WatchedRank, ratio: float, pair: _Pair) -> SlowRank:
    """The part of the step in which the excess lies, and why it takes longer."""
    parts: dict[Cause, Of] = {
        "compute": lambda step: step.undisturbed_ms(*COMPUTE),
        "data": lambda step: step.undisturbed_ms(DATA),
        "host": lambda step: step.undisturbed_ms(HOST),
    }
    cause = max(parts, key=lambda part: pair.excess(parts[part]))
    own_ms, usual_ms = pair.both(parts[cause])
    phase: str = cause
    if cause == "compute":
        longest = max(COMPUTE, key=lambda number: pair.excess(lambda step: step.undisturbed_ms(number)))
        cause, phase = _why_compute(rank, own_ms, usual_ms, pair), PHASES[longest]
    return SlowRank(rank, ratio, cause, own_ms, usual_ms, phase, pair.middle)


def _why_compute(rank: WatchedRank, own_ms: float, usual_ms: float, pair: _Pair) -> Cause:
    size, usual_size = pair.both(lambda step: step.elements)
    if usual_size and size / usual_size - 1 >= max(0.05, 0.4 * (own_ms / usual_ms - 1 if usual_ms else 0)):
        return "batch"
    if rank.gpu is not None or pair.excess(lambda step: step.compute_cpu_ms) >= 0.5 * (own_ms - usual_ms):
        return "compute"
    return "blocked"
