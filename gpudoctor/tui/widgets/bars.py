"""Bars and signs out of characters; every scale is fixed by the caller, never by the data."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10


def stacked(parts: Sequence[tuple[float, str]], limit: float, width: int) -> list[tuple[str, str]]:
    """Runs of (characters, sign) for parts laid end to end on a scale of 0 to `limit`; what is over it is cut.

    Edges are rounded where they lie, so that the length of the whole is that of the sum. Blanks, of sign "", come last.

    >>> stacked([(5.0, "█"), (2.5, "▒")], 10.0, 8)
    [('████', '█'), ('▒▒', '▒'), ('  ', '')]
    """
    runs: list[tuple[str, str]] = []
    done, total = 0, 0.0
    for value, sign in parts:
        total += max(value, 0.0)
        end = min(round(total / limit * width), width) if limit > 0 else 0
        runs.append((sign * (end - done), sign))
        done = end
    return [*runs, (" " * (width - done), "")]


def heat_sign(share: float) -> str:
    """How much of the expected was reached: `#` 90 % or more, `-` 50 % or more, `.` less.

    >>> heat_sign(1.02), heat_sign(0.9), heat_sign(0.7), heat_sign(0.49)
    ('#', '#', '-', '.')
    """
    return "#" if share >= 0.9 else "-" if share >= 0.5 else "."


def nice_limit(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten: the end of an axis that holds `value`.

    >>> nice_limit(0), nice_limit(7.2), nice_limit(210), nice_limit(24), nice_limit(0.03)
    (1.0, 10.0, 250.0, 25.0, 0.05)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(float(f"{step * power:.6g}") for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.999999)
