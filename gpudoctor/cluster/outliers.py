"""Finds the values that are worse than the others among many like measurements. Two rules must both hold.

1. Median and MAD: the value is further below the median than chance would put any of the judged values. The spread is
   the larger of the MAD of all values and of the worse half, times 1.4826 (which makes it a standard deviation if the
   noise is normal). The required distance grows with the number of judged values (normal quantile for a 1 % chance of
   naming any of them), and for small fleets of n nodes by 1 + 18 / n + 250 / n^2: in simulations with normal noise,
   the MAD of 10 values is so often far too small that 4 to 5 times the distance is needed, of 32 values 1.6 times.
2. The criterion of SuperBench (ATC 2024, arXiv 2402.06194): similarity to the fleet's criterion below 0.95. The
   criterion is the sample most similar to all others, recomputed after leaving out those of similarity 0.95 or less.
   Here a sample is one number, already the median of repeats. The most similar of several numbers is their median, and
   the area between two cumulative distributions is their difference, so similarity is worse / better.

Only worse values are outliers. If a quarter of the nodes or more would be outliers, or are 10 % worse than the
criterion, there are two kinds of nodes: this is reported as such, and no node is blamed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import msgspec

MIN_NODES = 10
ALPHA = 0.95  # SuperBench's
FAIL_SIMILARITY = 0.90  # reference: a stored baseline warns at -5 % and fails at -10 %
MOST_NAMED_SHARE = 0.25
_CHANCE = 0.01
_MAD_TO_SIGMA = 1.4826
_FEWEST_SIGMAS = 3.5  # Iglewicz and Hoaglin 1993: the usual bound of the modified z-score


class Bad(msgspec.Struct, frozen=True, gc=False):
    """An outlier: its similarity to the criterion, and its distance from the median in standard deviations.

    `node` is the caller's number of its node, `position` its index in the values.
    """

    value: float
    node: int
    position: int
    similarity: float
    sigmas: float | None

    @property
    def status(self) -> Literal["fail", "warn"]:
        """The status by size alone; the caller decides whether it has been seen often enough."""
        return "fail" if self.similarity <= FAIL_SIMILARITY else "warn"


class FigureSpread(msgspec.Struct, frozen=True):
    """The distribution of one figure's values. `bad` is worst first; `why_not` is why none was judged.

    `split`: so many values are worse that they form a second population; `bad` then contains all of them.
    """

    nodes: int
    samples: int
    median: float
    mad: float
    criterion: float
    low: float
    high: float
    bad: tuple[Bad, ...] = ()
    split: bool = False
    why_not: str | None = None


def sigmas_wanted(judged: int, nodes: int) -> float:
    """How many standard deviations an outlier must be off the median, with `judged` values in a fleet of `nodes`.

    >>> round(sigmas_wanted(2000, 10), 1), round(sigmas_wanted(2_000_000, 10_000), 1)
    (23.4, 5.7)
    >>> round(sigmas_wanted(10, 10_000), 1)
    3.5
    """
    by_chance = NormalDist().inv_cdf(1.0 - _CHANCE / max(judged, 1))
    return max(_FEWEST_SIGMAS, by_chance) * (1.0 + 18.0 / nodes + 250.0 / nodes**2)


def spread_of(values: Sequence[float], nodes: Sequence[int], less_is_better: bool, judged: int) -> FigureSpread:
    """The spread of one figure's values. `nodes` is the node of each value; `judged` is as in `sigmas_wanted`."""
    ordered = sorted(values)
    count = len(set(nodes))
    median = _median(ordered)
    deviation = _mad(ordered, median, less_is_better)
    criterion = _criterion(ordered)
    spread = FigureSpread(count, len(ordered), median, deviation, criterion, ordered[0], ordered[-1])
    if count < MIN_NODES:
        return msgspec.structs.replace(spread, why_not=f"{count} of at least {MIN_NODES} nodes")
    sigma = _MAD_TO_SIGMA * deviation
    furthest = sigmas_wanted(judged, count) * sigma
    # a value is bad beyond both bounds; a split is tested first because many bad values widen the spread
    far, bound = criterion * FAIL_SIMILARITY, min(criterion * ALPHA, median - furthest)
    if less_is_better:
        far, bound = criterion / FAIL_SIMILARITY, max(criterion / ALPHA, median + furthest)
    for limit in (far, bound):
        places = _beyond(values, ordered, limit, less_is_better)
        split = len({nodes[place] for place in places}) >= MOST_NAMED_SHARE * count
        if split or (limit == bound and places):
            bad = []
            for place in places:
                value = values[place]
                similarity = criterion / value if less_is_better else value / criterion
                sigmas = abs(value - median) / sigma if sigma > 0 else None
                bad.append(Bad(value, nodes[place], place, similarity, sigmas))
            bad.sort(key=lambda each: each.similarity)
            return msgspec.structs.replace(spread, bad=tuple(bad), split=split)
    return spread


def _beyond(values: Sequence[float], ordered: Sequence[float], limit: float, less_is_better: bool) -> list[int]:
    """The indexes of the values that are worse than the limit."""
    if less_is_better:
        return [] if ordered[-1] <= limit else [place for place, value in enumerate(values) if value > limit]
    return [] if ordered[0] >= limit else [place for place, value in enumerate(values) if value < limit]


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _mad(ordered: Sequence[float], median: float, less_is_better: bool) -> float:
    """The larger MAD of all values and of the worse half, since many distributions are wider on that side."""
    middle = len(ordered) // 2
    worse = ordered[middle:] if less_is_better else ordered[: len(ordered) - middle]
    return max(_median_distance(ordered, median), abs(_median(worse) - median))


def _median_distance(ordered: Sequence[float], median: float) -> float:
    """The distance from the median within which half of the values lie, by bisection: faster than a second sort."""
    half = (len(ordered) + 1) // 2
    low, high = 0.0, max(median - ordered[0], ordered[-1] - median)
    for _ in range(50):
        distance = (low + high) / 2
        if bisect_right(ordered, median + distance) - bisect_left(ordered, median - distance) >= half:
            high = distance
        else:
            low = distance
    return high


def _criterion(ordered: Sequence[float]) -> float:
    """The median of the values that are similar to it."""
    criterion = _median(ordered)
    for _ in range(20):
        similar = ordered[bisect_right(ordered, criterion * ALPHA) : bisect_left(ordered, criterion / ALPHA)]
        again = _median(similar) if similar else criterion
        if again == criterion:
            break
        criterion = again
    return criterion
