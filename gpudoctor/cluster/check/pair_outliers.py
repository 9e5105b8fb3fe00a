"""From the rates of pairs to the node or the link that is slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_high

import msgspec

# Who meets whom: every pair of nodes once, with as many pairs at a time as there are nodes for.

Pair = tuple[int, int]


def rounds_of(count: int) -> list[list[Pair]]:
    """A round-robin tournament of `count` players, 0 to count - 1, by the circle method.

    Every two meet exactly once, nobody twice in a round: count - 1 rounds of count / 2 pairs; with
    an odd count as many rounds as players, in each of which another one pauses.

    >>> rounds_of(4)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    >>> rounds_of(3)
    [[(1, 2)], [(0, 2)], [(0, 1)]]
    """
    seats = list(range(count + count % 2))
    half = len(seats) // 2
    rounds: list[list[Pair]] = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in facing if max(pair) < count])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


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
