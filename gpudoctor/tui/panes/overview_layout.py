"""Where each part of the overview lies at a size: pure arithmetic, from 80x24 up, for 1 to 16 GPUs.

What gives way when it gets tight, first to last: the history (it wants 6 lines), the finding and
the check list beside it (both have a tab of their own), the job's line, and at last GPU rows (they scroll).
Above what all need, the history grows first to twice, three and four times its height, then the finding.
"""

from __future__ import annotations

from dataclasses import dataclass

NARROW_BELOW = 110
HISTORY_LINES = 6
_FINDING_LEAST, _FINDING_TIGHT, _FINDING_GOOD, _FINDING_MOST = 5, 8, 10, 18
_CHECKS_LEAST, _CHECKS_MOST = 42, 72


@dataclass(frozen=True)
class Rectangle:
    """A rectangle in cells; of height 0 where it is not shown."""

    x: int = 0
    y: int = 0
    width: int = 0
    height: int = 0


@dataclass(frozen=True)
class Arrangement:
    """The parts of the overview; `narrow`: rules instead of boxes, and checks and finding side by side below."""

    narrow: bool
    gpus: Rectangle
    checks: Rectangle
    history: Rectangle
    finding: Rectangle
    host: Rectangle


def arrange(width: int, height: int, gpus: int) -> Arrangement:
    """Lay out `height` lines of `width` for so many GPUs."""
    return _narrow(width, height, gpus) if width < NARROW_BELOW else _wide(width, height, gpus)


def _narrow(width: int, height: int, gpus: int) -> Arrangement:
    rule = 1
    table = max(gpus, 1) + 1 + rule
    host = 2 + rule
    if height < table + host:
        host = 1 + rule
    table = min(table, max(height - host, 2 + rule))
    left = height - table - host
    history = HISTORY_LINES + rule if left >= HISTORY_LINES + rule + _FINDING_GOOD - 1 else 0
    below = left - history
    if below < _FINDING_LEAST - 1:
        table, below = table + below, 0
    list_width = min(40, width // 2)
    y = table + history
    return Arrangement(
        narrow=True,
        gpus=Rectangle(0, 0, width, table),
        history=Rectangle(0, table, width, history),
        checks=Rectangle(0, y, list_width, below),
        finding=Rectangle(list_width, y, width - list_width, below),
        host=Rectangle(0, y + below, width, host),
    )


def _wide(width: int, height: int, gpus: int) -> Arrangement:
    box = 2
    table = max(gpus, 1) + 1 + box
    host = 2 + box
    if height < table + host:
        host = 1 + box
    table = min(table, max(height - host, 2 + box))
    left = height - table - host
    finding = max(_FINDING_GOOD, min(_FINDING_MOST, left * 2 // 5))
    taller = min(4, (left - finding - box) // HISTORY_LINES)
    # an alert or a time slider takes a line or two: that is no reason for the history to go
    if taller < 1 and left >= HISTORY_LINES + box + _FINDING_TIGHT:
        taller = 1
    history = taller * HISTORY_LINES + box if taller > 0 else 0
    finding = left - history
    if finding < _FINDING_LEAST:
        table, finding = table + finding, 0
    list_width = min(_CHECKS_MOST, max(_CHECKS_LEAST, width * 35 // 100))
    side = width - list_width
    return Arrangement(
        narrow=False,
        gpus=Rectangle(0, 0, side, table),
        history=Rectangle(0, table, side, history),
        checks=Rectangle(side, 0, list_width, table + history),
        finding=Rectangle(0, table + history, width, finding),
        host=Rectangle(0, table + history + finding, width, host),
    )
