"""What no finding names, as it is not steady: a rank that holds the others up in few steps, but long (checkpoints)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from gpudoctor.run.findings.slow_ranks import LEAST_STEPS, compared
from gpudoctor.run.observer.layout import DATA, HOST, WAIT
from gpudoctor.run.step_series import COMPUTE, OWN, TimedStep
from gpudoctor.run.watched import Watched, WatchedRank
from gpudoctor.text.units import time_text

_LONG = 3.0  # x the usual step, more than any other rank's part of the same step
_LEAST_COST = 0.05  # of the time of the run
_LEAST_WAITED = 0.5  # of what it took more, others must have waited
_PARTS = (("compute", COMPUTE), ("data", (DATA,)), ("host", (HOST,)))


def rare_steps(watched: Watched) -> Iterator[str]:
    """A line for each such rank that the comparison of all steps does not name; no verdict, as it may be worth it."""
    ranks = [rank for rank in watched.ranks if rank.steps]
    if len(ranks) < 2 or min(len(rank.steps) for rank in ranks) < LEAST_STEPS:
        return
    named = {slow.rank.rank for slow in compared(watched).slow}
    usual_ms = median(step.step_ms for rank in ranks for step in rank.steps)
    for rank, more_ms in zip(ranks, _more_than_others(ranks), strict=True):
        long = [number for number, ms in enumerate(more_ms) if ms >= _LONG * usual_ms]
        cost_ms = sum(more_ms[number] for number in long)
        if long and rank.rank not in named and _others_waited(rank, cost_ms, ranks):
            yield _line(rank, long, max(more_ms), usual_ms, cost_ms)


def _more_than_others(ranks: Sequence[WatchedRank]) -> Iterator[list[float]]:
    """For each rank, by how much each of its steps was longer than that of any other, in ms; 0 if it was not."""
    own_ms = [[_own_ms(rank, step) for step in rank.steps] for rank in ranks]
    longest = [sorted(each)[-2:] for each in zip(*own_ms, strict=True)]  # of each step the second and the first
    for own in own_ms:
        yield [ms - second if ms == first else 0.0 for ms, (second, first) in zip(own, longest, strict=True)]


def _others_waited(rank: WatchedRank, cost_ms: float, ranks: Sequence[WatchedRank]) -> bool:
    """Whether what the long steps of a rank took is a part of its time worth a line, and all others waited for it."""
    waited_ms = min(sum(step.wall_ms[WAIT] for step in other.steps) for other in ranks if other is not rank)
    return _share(rank, cost_ms) >= _LEAST_COST and waited_ms >= _LEAST_WAITED * cost_ms


def _share(rank: WatchedRank, cost_ms: float) -> float:
    return cost_ms / (sum(step.step_ms for step in rank.steps) or 1.0)


def _line(rank: WatchedRank, long: Sequence[int], most_ms: float, usual_ms: float, cost_ms: float) -> str:
    size, count = _size(rank.steps), len(rank.steps)
    several = f"stretches of {size} steps" if size > 1 else "steps"
    steps = f"{len(long) if len(long) > 1 else 'one'} of {count} {several}"
    where = f"{_part([rank.steps[n] for n in long])}; a usual step takes {time_text(1000 * usual_ms)}"
    most = time_text(1000 * size * most_ms)
    share = f"{_share(rank, cost_ms):.0%} of the time"
    return (
        f"rank {rank.rank} held the others up in {steps}, by up to {most} ({where}): {share}. "
        "A checkpoint or an evaluation on one rank looks like this"
    )


def _size(steps: Sequence[TimedStep]) -> int:
    """How many steps each one is the mean of: a long run keeps no single ones."""
    return max(1, min(later.number - step.number for step, later in pairwise(steps)))


def _own_ms(rank: WatchedRank, step: TimedStep) -> float:
    """The part of a step in which it did not wait for others, nor lacked a CPU."""
    return step.undisturbed_ms(*OWN) if rank.gpu is None else step.own_ms


def _part(steps: list[TimedStep]) -> str:
    return max(_PARTS, key=lambda part: sum(step.undisturbed_ms(*part[1]) for step in steps))[0]
