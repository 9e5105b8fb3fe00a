"""A fast filter for the lines of a block that are worth parsing. Pure: bytes in, lines out.

A healthy hour's log has millions of lines without information. Searching for a few literals is a hundred times as fast
as parsing, and a line let through needlessly costs only time. The lines after "Traceback" are kept too.
"""

from __future__ import annotations

import re
from functools import lru_cache

# Each line of interest in the middle of a log contains one of these or follows the beginning of a traceback. Each costs
# about 0.5 s for 1 GB of lines that all differ, so words whose lines contain another one ("Errno") are not listed
NEEDLES = (
    b"rror", b"ailed", b"raceback", b"atchdog", b"ProcessGroup", b"illed", b"illing", b"ignal",
    b"NCCL WARN", b"NVRM", b"xit", b"busId", b" died", b"by peer", b"NaN", b"Evict",
    b"AER:", b"restart worker", b"assert", b"completion from", b"*** SIG",
)  # fmt: skip
_TRACEBACK = b"raceback"
_LAST_ERROR = b"Last error"
_LINES_OF_TRACEBACK = 120
_LINES_OF_LAST_ERROR = 4
_OF_TRACEBACK = re.compile(rb'  File "|^ {2,}|: {3,}|\^\^\^|rror|xception')
_MOST_OTHERS_BETWEEN = 12  # lines of other writers inside a traceback
_MOST_ALIKE = 200  # in one block
_SHORT_LINE_BYTES = 8
_BEFORE, _BEHIND = 16, 40  # bytes around a word of interest that identify its kind of line
_ONE_DIGIT = bytes.maketrans(b"123456789", b"0" * 9)
_DIGITS = bytes.maketrans(b"0123456789abcdef", b"0" * 16)

Hit = tuple[int, bytes]


def interesting_lines(block: bytes) -> list[Hit]:
    """The lines of interest in order, as (line number from 0, bytes without line end)."""
    kinds = _kinds_of(block)
    present = tuple(needle for needle in NEEDLES if needle in kinds)
    if not present:
        return []
    hits: list[Hit] = []
    alike: dict[bytes, int] = {}
    around: dict[bytes, int] = {}
    number = place = 0
    until, quiet = -1, 0
    pattern = _pattern(present)
    while place < len(block):
        if number <= until:
            start = place
        else:
            found = _next_match(pattern, block, place, around)
            if found < 0:
                break
            start = block.rfind(b"\n", place, found) + 1 or place
        number += block.count(b"\n", place, start)
        end = block.find(b"\n", start)
        end = len(block) if end < 0 else end
        line = block[start:end]
        if _TRACEBACK in line:
            until, quiet = number + _LINES_OF_TRACEBACK, 0
        elif _LAST_ERROR in line:
            until = max(until, number + _LINES_OF_LAST_ERROR)
        elif number <= until:
            quiet = 0 if _OF_TRACEBACK.search(line, 0, 200) else quiet + 1
            if quiet >= _MOST_OTHERS_BETWEEN:
                until = number
        kind = line.translate(_DIGITS)[:200]
        seen = alike.get(kind, 0)
        alike[kind] = seen + 1
        if seen < _MOST_ALIKE:
            hits.append((number, line))
        place, number = end + 1, number + 1
    return hits


def _kinds_of(block: bytes) -> bytes:
    """Each line once that differs from others in more than its digits: the same words as in the block, in less text.

    Of very short lines the block itself: to tell them apart takes longer than to search them all.
    """
    if block.count(b"\n") * _SHORT_LINE_BYTES > len(block):
        return block
    return b"\n".join(set(block.translate(_ONE_DIGIT).split(b"\n")))


def _next_match(pattern: re.Pattern[bytes], block: bytes, place: int, around: dict[bytes, int]) -> int:
    """The offset of the next word of interest whose surroundings have not come up 200 times yet; -1 at the end.

    "validation error 0.31" in the line of every step must not cost as much as a line of interest.
    """
    for found in pattern.finditer(block, place):
        start = found.start()
        key = block[max(start - _BEFORE, place) : start + _BEHIND].translate(_DIGITS)
        seen = around.get(key, 0)
        if seen < _MOST_ALIKE:
            around[key] = seen + 1
            return start
    return -1


def all_lines(block: bytes) -> list[Hit]:
    """Every line, as `interesting_lines` returns them."""
    lines = block.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    return list(enumerate(lines))


@lru_cache(maxsize=64)
def _pattern(present: tuple[bytes, ...]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(map(re.escape, present)))
