"""Bars, signs and plots made of characters; the caller sets every scale."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import floor, log2, log10

_LABEL_WIDTH = 7
_POINT, _LINE = "o", "·"


def stacked(parts: Sequence[tuple[float, str]], limit: float, width: int) -> str:
    """(value, sign) of parts laid end to end on a scale of 0 to `limit`, then blanks; anything beyond is cut.

    The edges are rounded, not the lengths, so that the total length is that of the sum.

    >>> stacked([(5.0, "█"), (2.5, "▒")], 10.0, 8)
    '████▒▒  '
    """
    drawn, total = "", 0.0
    for value, sign in parts:
        total += max(value, 0.0)
        end = min(round(total / limit * width), width) if limit > 0 else 0
        drawn += sign * (end - len(drawn))
    return drawn.ljust(width)


def heat_sign(share: float) -> str:
    """The sign for a share of the expected rate: `#` 90 % or more, `-` 50 % or more, `.` less.

    >>> heat_sign(0.9), heat_sign(0.899), heat_sign(0.5), heat_sign(0.499)
    ('#', '-', '-', '.')
    """
    return "#" if share >= 0.9 else "-" if share >= 0.5 else "."


def nice_limit(value: float) -> float:
    """The end of an axis for `value`: the next of 1, 2, 2.5 or 5 times a power of ten.

    >>> nice_limit(0), nice_limit(7.2), nice_limit(210), nice_limit(24), nice_limit(0.03)
    (1.0, 10.0, 250.0, 25.0, 0.05)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(float(f"{step * power:.6g}") for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.999999)


# Plots with labelled axes: a logarithmic x axis, a y axis from 0.


def plot_lines(
    points: Sequence[tuple[float, float]], labels: Sequence[str], width: int, height: int, limit: float
) -> list[str]:
    """Lines of at most `width` characters, `height` of them above the axis.

    `points` are (x, y) with x > 0 ascending and y >= 0; `labels` go below their x. `limit` is the end of the
    y axis, above 0. Points are joined by straight lines.

    >>> for line in plot_lines([(1, 0), (2, 5), (4, 10)], ["1", "2", "4"], 20, 3, 10.0): print(line)
         10 ┤        ··o
          5 ┤   ··o··
          0 ┤o··
            └───────────
             1    2    4
    """
    across = max(width - _LABEL_WIDTH - 2 - max((len(label) for label in labels), default=0) // 2, 2)
    columns = _columns([x for x, _ in points], across)
    rows = [[" "] * across for _ in range(max(height, 2))]

    def row_of(y: float) -> int:
        share = min(max(y / limit, 0.0), 1.0)
        return round((1 - share) * (len(rows) - 1))

    placed = [(column, y) for column, (_, y) in zip(columns, points, strict=True)]
    for (start, low), (end, high) in pairwise(placed):
        for column in range(start, end):
            rows[row_of(low + (high - low) * (column - start) / max(end - start, 1))][column] = _LINE
    for column, y in placed:
        rows[row_of(y)][column] = _POINT
    last = len(rows) - 1
    lines = []
    for number, row in enumerate(rows):
        label = f"{limit * (1 - number / last):.3g}" if number in (0, last // 2, last) else ""
        lines.append(f"{label:>{_LABEL_WIDTH}} {'┤' if label else '│'}{''.join(row)}".rstrip())
    lines.append(" " * (_LABEL_WIDTH + 1) + "└" + "─" * across)
    return [*lines, _label_line(columns, labels, width)]


def _columns(xs: Sequence[float], across: int) -> list[int]:
    """The column of each x by its logarithm; a single one goes to the middle."""
    if not xs:
        return []
    low, high = log2(xs[0]), log2(xs[-1])
    if high <= low:
        return [across // 2] * len(xs)
    return [round((log2(x) - low) / (high - low) * (across - 1)) for x in xs]


def _label_line(columns: Sequence[int], labels: Sequence[str], width: int) -> str:
    """Labels centred below their columns; one that would touch its predecessor is left out."""
    line = ""
    for column, label in zip(columns, labels, strict=True):
        start = max(min(_LABEL_WIDTH + 2 + column - (len(label) - 1) // 2, width - len(label)), 0)
        if not line or start > len(line):
            line = line.ljust(start) + label
    return line
