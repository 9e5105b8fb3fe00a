"""Finds what is worse than the others: values among many like measurements, and nodes and links by their pairs.

For values, two rules must both hold.

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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, median, median_high
from typing import Literal

import msgspec

from gpudoctor.probes.collective.merge import Pair

MIN_NODES = 10
ALPHA = 0.95  # SuperBench's
FAIL_SIMILARITY = 0.90  # reference: a stored baseline warns at -5 % and fails at -10 %
MOST_NAMED_SHARE = 0.25
_CHANCE = 0.01
_MAD_TO_SIGMA = 1.4826
_FEWEST_SIGMAS = 3.5  # Iglewicz and Hoaglin 1993: the usual bound of the modified z-score
# A node is blamed if its pairs with nearly all partners are slow (gpudoctor's own choice: three of four), and only if
# it has two or more partners: with one, there is no telling which of the two it is.
NEARLY_ALL = 0.75
_FEWEST_PARTNERS = 2


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
    middle = median(ordered)
    deviation = _mad(ordered, middle, less_is_better)
    criterion = _criterion(ordered)
    spread = FigureSpread(count, len(ordered), middle, deviation, criterion, ordered[0], ordered[-1])
    if count < MIN_NODES:
        return msgspec.structs.replace(spread, why_not=f"{count} of at least {MIN_NODES} nodes")
    sigma = _MAD_TO_SIGMA * deviation
    furthest = sigmas_wanted(judged, count) * sigma
    # a value is bad beyond both bounds; a split is tested first because many bad values widen the spread
    far, bound = criterion * FAIL_SIMILARITY, min(criterion * ALPHA, middle - furthest)
    if less_is_better:
        far, bound = criterion / FAIL_SIMILARITY, max(criterion / ALPHA, middle + furthest)
    for limit in (far, bound):
        indexes = _beyond(values, ordered, limit, less_is_better)
        split = len({nodes[index] for index in indexes}) >= MOST_NAMED_SHARE * count
        if split or (limit == bound and indexes):
            bad = []
            for index in indexes:
                value = values[index]
                similarity = criterion / value if less_is_better else value / criterion
                sigmas = abs(value - middle) / sigma if sigma > 0 else None
                bad.append(Bad(value, nodes[index], index, similarity, sigmas))
            bad.sort(key=lambda each: each.similarity)
            return msgspec.structs.replace(spread, bad=tuple(bad), split=split)
    return spread


def _beyond(values: Sequence[float], ordered: Sequence[float], limit: float, less_is_better: bool) -> list[int]:
    """The indexes of the values that are worse than the limit."""
    if less_is_better:
        return [] if ordered[-1] <= limit else [index for index, value in enumerate(values) if value > limit]
    return [] if ordered[0] >= limit else [index for index, value in enumerate(values) if value < limit]


def _mad(ordered: Sequence[float], middle: float, less_is_better: bool) -> float:
    """The larger MAD of all values and of the worse half, since many distributions are wider on that side."""
    half = len(ordered) // 2
    worse = ordered[half:] if less_is_better else ordered[: len(ordered) - half]
    return max(_median_distance(ordered, middle), abs(median(worse) - middle))


def _median_distance(ordered: Sequence[float], middle: float) -> float:
    """The distance from the median within which half of the values lie, by bisection: faster than a second sort."""
    half = (len(ordered) + 1) // 2
    low, high = 0.0, max(middle - ordered[0], ordered[-1] - middle)
    for _ in range(50):
        distance = (low + high) / 2
        if bisect_right(ordered, middle + distance) - bisect_left(ordered, middle - distance) >= half:
            high = distance
        else:
            low = distance
    return high


def _criterion(ordered: Sequence[float]) -> float:
    """The median of the values that are similar to it."""
    criterion = median(ordered)
    for _ in range(20):
        similar = ordered[bisect_right(ordered, criterion * ALPHA) : bisect_left(ordered, criterion / ALPHA)]
        again = median(similar) if similar else criterion
        if again == criterion:
            break
        criterion = again
    return criterion


# Slow nodes and links, by the rates of pairs of nodes.


class Named(msgspec.Struct, frozen=True):
    """`nodes` are slow with nearly all partners; `links` are the other slow pairs."""

    nodes: tuple[int, ...]
    links: tuple[Pair, ...]


def usual_rate(rates: Mapping[Pair, float]) -> float | None:
    """The usual rate of a pair: the median over the nodes of each node's best pair; None if there is no rate.

    Not the median of all pairs, since one slow node of three or four makes half of the pairs slow. A node's best pair
    is slow only if the node itself is, so this is right until half of the nodes are slow.
    """
    best: dict[int, float] = {}
    for pair, rate in rates.items():
        for node in pair:
            best[node] = max(best.get(node, 0.0), rate)
    # of an even number the upper one: with two slow nodes of four, a mean would be the rate of neither kind
    return median_high(best.values()) if best else None


def slow_pairs(rates: Mapping[Pair, float], share: float) -> list[Pair]:
    """The pairs below `share` of the usual rate, slowest first."""
    usual = usual_rate(rates)
    return sorted((pair for pair in rates if usual and rates[pair] < usual * share), key=lambda pair: rates[pair])


def name_outliers(measured: Iterable[Pair], outliers: Sequence[Pair]) -> Named:
    """Name nodes until none is an outlier with nearly all of its remaining partners; the other outliers are links.

    The node with the largest share of outliers is named first, and its pairs are then left out, so that a bad node
    does not make its partners look bad.
    """
    left = {(min(pair), max(pair)) for pair in measured}
    outliers_left = {(min(pair), max(pair)) for pair in outliers} & left
    partners, outlier_partners = _counted(left), _counted(outliers_left)
    nodes: list[int] = []
    while outliers_left:
        judged = [node for node in sorted(outlier_partners) if partners[node] >= _FEWEST_PARTNERS]
        worst = max(judged, key=lambda node: outlier_partners[node] / partners[node], default=None)
        if worst is None or outlier_partners[worst] / partners[worst] < NEARLY_ALL:
            break
        nodes.append(worst)
        missing = {pair for pair in left if worst in pair}
        partners.subtract(_counted(missing))
        outlier_partners.subtract(_counted(missing & outliers_left))
        left -= missing
        outliers_left -= missing
    return Named(tuple(sorted(nodes)), tuple(sorted(outliers_left)))


def _counted(pairs: Iterable[Pair]) -> Counter[int]:
    return Counter(node for pair in pairs for node in pair)
