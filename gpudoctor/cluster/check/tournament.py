"""Who meets whom: every pair of nodes once, with as many pairs at a time as there are nodes for."""

from __future__ import annotations

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
