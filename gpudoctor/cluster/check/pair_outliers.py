"""From the rates of pairs to the node or the link that is slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_high

import msgspec

from gpudoctor.probes.collective.merge import Pair

# A node is named where its pairs are slow with nearly all others, of which there must be two or more: with one
# partner alone nobody can tell which of the two it is. gpudoctor's own choice: of four partners three.
NEARLY_ALL = 0.75
_FEWEST_PARTNERS = 2


class Named(msgspec.Struct, frozen=True):
    """`nodes` are slow with nearly everyone; `links` are the other slow pairs."""

    nodes: tuple[int, ...]
    links: tuple[Pair, ...]


def usual_rate(rates: Mapping[Pair, float]) -> float | None:
    """What a pair reaches here: the median over the nodes of each node's best pair; None where there is no rate.

    Not the median of all pairs: one slow node of three or four makes half of the pairs slow. A node's
    best pair is slow only where the node itself is, so that this holds until half of the nodes are.
    """
    best: dict[int, float] = {}
    for pair, rate in rates.items():
        for node in pair:
            best[node] = max(best.get(node, 0.0), rate)
    # of an even number the upper one: with two slow of four the middle of both would be nobody's rate
    return median_high(best.values()) if best else None


def slow_pairs(rates: Mapping[Pair, float], share: float) -> list[Pair]:
    """The pairs below `share` of what is usual, the slowest first."""
    usual = usual_rate(rates)
    return sorted((pair for pair in rates if usual and rates[pair] < usual * share), key=lambda pair: rates[pair])


def name_odd(measured: Iterable[Pair], odd: Sequence[Pair]) -> Named:
    """Name nodes until none is odd with nearly all others that are left; what odd pairs remain are links.

    The node with the largest share of odd pairs is named first, and its pairs are then left out,
    so that a bad node does not make its partners look bad.
    """
    left = {(min(pair), max(pair)) for pair in measured}
    odd_left = {(min(pair), max(pair)) for pair in odd} & left
    partners, odd_partners = _counted(left), _counted(odd_left)
    nodes: list[int] = []
    while odd_left:
        judged = [node for node in sorted(odd_partners) if partners[node] >= _FEWEST_PARTNERS]
        worst = max(judged, key=lambda node: odd_partners[node] / partners[node], default=None)
        if worst is None or odd_partners[worst] / partners[worst] < NEARLY_ALL:
            break
        nodes.append(worst)
        gone = {pair for pair in left if worst in pair}
        partners.subtract(_counted(gone))
        odd_partners.subtract(_counted(gone & odd_left))
        left -= gone
        odd_left -= gone
    return Named(tuple(sorted(nodes)), tuple(sorted(odd_left)))


def _counted(pairs: Iterable[Pair]) -> Counter[int]:
    return Counter(node for pair in pairs for node in pair)
