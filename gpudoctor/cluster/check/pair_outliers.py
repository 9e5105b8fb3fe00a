"""Finds the slow node or link from the rates of pairs of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_high

import msgspec

from gpudoctor.probes.collective.merge import Pair

# A node is blamed if its pairs with nearly all partners are slow (gpudoctor's own choice: three of four), and only if
# it has two or more partners: with one, there is no telling which of the two it is.
NEARLY_ALL = 0.75
_FEWEST_PARTNERS = 2


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
        gone = {pair for pair in left if worst in pair}
        partners.subtract(_counted(gone))
        outlier_partners.subtract(_counted(gone & outliers_left))
        left -= gone
        outliers_left -= gone
    return Named(tuple(sorted(nodes)), tuple(sorted(outliers_left)))


def _counted(pairs: Iterable[Pair]) -> Counter[int]:
    return Counter(node for pair in pairs for node in pair)
