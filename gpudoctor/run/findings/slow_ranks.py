"""Which ranks make the others wait, and with what: the comparison that the sanity train makes, on the user's steps.

In synchronous training all ranks take equally long, because they wait for the slowest; so what is compared is the time
in which a rank did not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.measured.rank_comparison import Deviation, Thresholds, by_cycles
from gpudoctor.facts.model.measurements import LEAST_JUDGED_CYCLES
from gpudoctor.run.observer.layout import BACKWARD, BETWEEN, DATA, FORWARD, HOST, PHASES
from gpudoctor.run.step_series import COMPUTE, OWN, TimedStep, mean_step, turns
from gpudoctor.run.watched import Watched, WatchedRank

_SIMULATED = "as train.balance: by simulation, at most 1 of 10,000 healthy trainings is called slow"
WARN_RATIO = Limit(1.10, "of the others' median", _SIMULATED, name="warn_ratio")
LAST_IN_SHARE = Limit(
    0.8, "of the turns", "as train.balance: an innocent rank is slowest in 1 of n", name="last_in_share"
)
LIMITS = (WARN_RATIO, LAST_IN_SHARE)
MOST_TURNS = 20
_STEPS_A_TURN = 3
LEAST_STEPS = LEAST_JUDGED_CYCLES * _STEPS_A_TURN  # a turn of steps is to a run what a cycle is to the train
_LEAST_EXCESS_MS = 0.3
_LEAST_OWN_RATIO = 1.03  # what makes no difference to the whole is no finding
_LEAST_STARVED_RATIO = 1.2  # on a busy machine all ranks lack CPUs now and then
_STARVED_SHARE = 0.6
_STARVED_RATIO = 1.5
# More is ready to run than there are cores. What shares caches and hyper-threads takes more CPU time for equal work:
# measured 1.2 x (two ranks, 18 other processes) and 1.15 x (four ranks on two cores, nothing else: a share of 0.5)
_CROWDED_SHARE = 0.3
_CROWDED_RATIO = 1.5
_CROWDED_LOADER_RATIO = 2.0  # workers of a loader lack CPUs too, one rank's more than another's
# where more work may lie (optimizers of equal models do equal work, and are bound by memory that others use too), and
# the least part of a step whose speed says something of the core
_PARTS = ((DATA,), (FORWARD,), (BACKWARD,), (BETWEEN,), (HOST,), (FORWARD, BACKWARD))
_LEAST_YARDSTICK_SHARE = 0.01
_LEAST_YARDSTICKS = 2
_THRESHOLDS = Thresholds(WARN_RATIO.value, 9.0, _LEAST_EXCESS_MS, LAST_IN_SHARE.value, _LEAST_EXCESS_MS)

Cause = Literal["compute", "batch", "data", "host", "cpu", "blocked"]
Of = Callable[[TimedStep], float]


class SlowRank(msgspec.Struct, frozen=True):
    """A rank that others wait for. The part of a step that `cause` names takes it `own_ms`, the others `usual_ms`, as
    the table of the ranks has it; `often`, in words, how often.

    `cpu`: it waits for a CPU core; `blocked`: it computes no more than others, and stands still meanwhile. `phase` is
    where most of the excess lies.
    """

    rank: WatchedRank
    ratio: float
    cause: Cause
    own_ms: float
    usual_ms: float
    often: str
    phase: str


class RankComparison(msgspec.Struct, frozen=True):
    """`slow` ranks; `unsure` ones, that seem slow without being so steadily; the turns compared, 0 if too few steps."""

    slow: tuple[SlowRank, ...]
    unsure: tuple[Deviation, ...]
    turns: int
    largest_ratio: float = 1.0


def shown_step(rank: WatchedRank) -> TimedStep:
    """The mean of its steps, as people are shown it: in the table of the ranks and in the findings alike."""
    mean = mean_step(rank.steps)
    return mean if rank.gpu is None else mean.on_stream()


def share_without_cpu(steps: Sequence[TimedStep]) -> float:
    """The part of the time in which a rank needed a CPU and had none."""
    queued_ms = sum(step.own_queued_ms for step in steps)
    needed_ms = queued_ms + sum(step.cpu_ms[phase] for step in steps for phase in OWN)
    return queued_ms / needed_ms if needed_ms else 0.0


def compared(watched: Watched) -> RankComparison:
    """Compare the ranks of a run.

    What counts first is the time in which a rank had a CPU or needed none: on a busy machine the rest is chance. What
    else the machine does still makes the same work take longer, on one core more than on another, but in all phases
    alike: so the rest of a rank's step is the yardstick for each of its phases (`_most_beside_the_rest`), and little
    more in all phases names no rank that may use the CPUs of the others.

    A rank that lacks a CPU much more than the others is named for that alone, if it may not use the same CPUs as they:
    which of equal processes the kernel lets wait is chance too.
    """
    ranks = [rank for rank in watched.ranks if rank.steps]
    steps = min((len(rank.steps) for rank in ranks), default=0)
    if len(ranks) < 2 or steps < LEAST_STEPS:
        return RankComparison((), (), 0)
    count = min(MOST_TURNS, steps // _STEPS_A_TURN)
    each = {rank.rank: turns(rank.steps, count) for rank in ranks}
    queued = min(share_without_cpu(its_turns) for its_turns in each.values())
    found: list[SlowRank | Deviation | None] = []
    largest = 0.0
    for rank in ranks:
        others = [other for other in ranks if other is not rank]
        pair = _Pair(rank, others, each[rank.rank], [each[other.rank] for other in others])
        own = pair.deviation(lambda step: step.undisturbed_ms(*OWN))
        largest = max(largest, own.ratio)
        found.append(_judged(pair, own, queued))
    slow = tuple(each for each in found if isinstance(each, SlowRank))
    unsure = tuple(each for each in found if isinstance(each, Deviation))
    return RankComparison(slow, unsure, count, largest)


def _judged(pair: _Pair, own: Deviation, queued: float) -> SlowRank | Deviation | None:
    """One rank against the others: slow, not steadily so, or neither."""
    is_free = all(other.cpus == pair.rank.cpus for other in pair.others)  # to use the same CPUs as the others
    wall = pair.deviation(lambda step: step.own_ms)
    if not is_free and _is_starved(pair) and _is_confirmed(wall) and wall.ratio >= _LEAST_STARVED_RATIO:
        return SlowRank(pair.rank, wall.ratio, "cpu", *_shown(pair, lambda step: step.own_ms), "own")
    compute = pair.deviation(lambda step: step.undisturbed_ms(*COMPUTE))
    beside = _most_beside_the_rest(pair)
    confirmed = [deviation for deviation in (own, compute, beside) if _is_confirmed(deviation)]
    if confirmed and own.ratio >= _LEAST_OWN_RATIO:
        found = _named(pair, max(deviation.ratio for deviation in confirmed))
        why = _chance(found, pair, beside, queued, is_free)
        return msgspec.structs.replace(own, ratio=found.ratio, verdict="noisy", why=why) if why else found
    return own if own.verdict == "noisy" and own.ratio >= WARN_RATIO.value else None


class _Pair(NamedTuple):
    """A rank and the others, and the turns of each."""

    rank: WatchedRank
    others: Sequence[WatchedRank]
    own: Sequence[TimedStep]
    peers: Sequence[Sequence[TimedStep]]

    def both(self, of: Of) -> tuple[float, float]:
        """The median of the rank's turns, and the median of those of the others."""
        return median(map(of, self.own)), median(median(map(of, peer)) for peer in self.peers)

    def excess(self, of: Of) -> float:
        own, usual = self.both(of)
        return own - usual

    def usual(self, of: Of) -> list[float]:
        """Of each turn, the median of the others."""
        return [median(of(turn) for turn in turns) for turns in zip(*self.peers, strict=True)]

    def deviation(self, of: Of) -> Deviation:
        return _deviation(self.rank.rank, [of(turn) for turn in self.own], self.usual(of))


def _is_confirmed(deviation: Deviation) -> bool:
    return deviation.verdict in ("warn", "fail")


def _is_starved(pair: _Pair) -> bool:
    """Whether it lacks a CPU much more than the others, for what it does: more work alone waits more too."""
    queued, usual = pair.both(lambda step: step.own_queued_ms / max(step.undisturbed_ms(*OWN), 0.001))
    excess_ms = pair.excess(lambda step: step.own_queued_ms)
    return queued >= _STARVED_RATIO * usual and excess_ms >= _STARVED_SHARE * pair.excess(lambda step: step.own_ms)


def _most_beside_the_rest(pair: _Pair) -> Deviation:
    """How much longer the rank's own time would be, if its core were as fast as the others' cores.

    How fast that is, the other phases tell, each as good as any other: the median of their ratios. So one phase in
    which another rank does more cannot make this one look slow in the others. The part of the step with the largest
    excess that is confirmed counts, else that with the largest.
    """
    usual = {phase: pair.usual(lambda step, phase=phase: step.undisturbed_ms(phase)) for phase in OWN}  # type: ignore[misc]
    whole = [sum(usual[phase][turn] for phase in OWN) for turn in range(len(pair.own))]
    long = [phase for phase in OWN if median(usual[phase]) >= _LEAST_YARDSTICK_SHARE * median(whole)]
    found = []
    for part in _PARTS:
        rest = [phase for phase in long if phase not in part]
        if len(rest) < _LEAST_YARDSTICKS:
            continue
        values = []
        for turn, usual_ms in enumerate(whole):
            speeds = [
                log(own_ms / usual[phase][turn])
                for phase in rest
                if (own_ms := pair.own[turn].undisturbed_ms(phase)) > 0 and usual[phase][turn] > 0
            ]
            part_ms = pair.own[turn].undisturbed_ms(*part) / exp(median(speeds)) if speeds else 0.0
            values.append(usual_ms + part_ms - sum(usual[phase][turn] for phase in part) if speeds else 0.0)
        found.append(_deviation(pair.rank.rank, values, whole))
    none = _deviation(pair.rank.rank, whole, whole)
    return max(found, key=lambda each: (_is_confirmed(each), each.ratio), default=none)


def _chance(found: SlowRank, pair: _Pair, beside: Deviation, queued: float, is_free: bool) -> str:
    """By what so much more time may have come without the rank; empty if by nothing."""
    crowded = f"the ranks had no CPU for {queued:.0%} of the time in which they needed one"
    is_crowded = queued >= _CROWDED_SHARE
    if found.cause == "data" and pair.excess(lambda step: step.cpu_ms[DATA]) < 0.5 * pair.excess(_of(DATA)):
        waits_for_workers = found.rank.loader_workers > 0 and found.ratio < _CROWDED_LOADER_RATIO
        return crowded if is_crowded and waits_for_workers else ""
    if found.cause not in ("compute", "data", "host") or _is_confirmed(beside) or found.ratio >= _CROWDED_RATIO:
        return ""
    alike = "it takes longer in all phases alike, as on a core that something else slows down"
    return crowded if is_crowded else alike if is_free and found.rank.gpu is None else ""


def _deviation(rank: int, own_ms: Sequence[float], usual_ms: Sequence[float]) -> Deviation:
    """The sanity train's comparison, turn by turn: all ranks are seen in each, whatever they compute on."""
    usual = median(usual_ms)
    return by_cycles(rank, own_ms, [usual_ms], _THRESHOLDS, median(own_ms) / usual if usual > 0 else 1.0)


def _named(pair: _Pair, ratio: float) -> SlowRank:
    """The part of the step in which the excess lies, and why it takes longer."""
    parts: dict[Cause, Of] = {"compute": _of(*COMPUTE), "data": _of(DATA), "host": _of(HOST)}
    part = max(parts, key=lambda part: pair.excess(parts[part]))
    cause, phase = part, str(part)
    if part == "compute":
        phase = PHASES[max(COMPUTE, key=lambda number: pair.excess(_of(number)))]
        cause = _why_compute(pair, *pair.both(parts[part]))
    return SlowRank(pair.rank, ratio, cause, *_shown(pair, parts[part]), phase)


def _of(*phases: int) -> Of:
    return lambda step: step.undisturbed_ms(*phases)


def _shown(pair: _Pair, of: Of) -> tuple[float, float, str]:
    """What it takes the rank, and the others, and how often: the means, as the table of the ranks has them.

    Unless a few steps hide there what most show: another rank's checkpoint.
    """
    own_ms = of(shown_step(pair.rank))
    usual_ms = median(of(shown_step(rank)) for rank in pair.others)
    if own_ms - usual_ms >= 0.5 * pair.excess(of):
        return own_ms, usual_ms, "a step"
    return *pair.both(of), "in most steps"


def _why_compute(pair: _Pair, own_ms: float, usual_ms: float) -> Cause:
    size, usual_size = pair.both(lambda step: step.elements)
    if usual_size and size / usual_size - 1 >= max(0.05, 0.4 * (own_ms / usual_ms - 1 if usual_ms else 0)):
        return "batch"
    if pair.rank.gpu is not None or pair.excess(lambda step: step.compute_cpu_ms) >= 0.5 * (own_ms - usual_ms):
        return "compute"
    return "blocked"
