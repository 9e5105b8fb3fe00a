"""Lifetime counters: when one stands out from its peers. Alone they are never a verdict."""

from __future__ import annotations

from collections.abc import Sequence


def out_of_line(count: int, peers: Sequence[int], floor: float, ratio: float) -> float | None:
    """The bound that `count` exceeds, or None if it is in line.

    The bound is `ratio` times the peers' median and never below `floor`. Without peers a tenth of
    the floor stands for their median.

    >>> out_of_line(50_000, [0, 3, 1], floor=1000, ratio=100)
    1000
    >>> out_of_line(150, [0, 0, 0], floor=1000, ratio=100) is None
    True
    """
    middle = sorted(peers)[len(peers) // 2] if peers else floor / 10
    bound = max(floor, ratio * middle)
    return bound if count >= bound else None
