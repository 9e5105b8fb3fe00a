"""Host names: Slurm hostlist expressions (node[1-3,7]) and natural sorting."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpudoctor.lazy_pattern import lazy_pattern

# what a host list may contain: a name from a report must not inject a second host, an option or a command
_HOST_NAME = lazy_pattern(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")
_DIGITS = lazy_pattern(r"([0-9]+)")
_NUMBERED = lazy_pattern(r"(.*?)([0-9]{1,9})", re.DOTALL)


def is_host_name(name: str) -> bool:
    """Whether the name is allowed in a host list.

    >>> is_host_name("gpu-07.cluster"), is_host_name("a b"), is_host_name("-x"), is_host_name("node[1-9]")
    (True, False, False, False)
    """
    return _HOST_NAME.fullmatch(name) is not None


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts node2 before node10."""
    words = _DIGITS.split(name)
    return tuple((1, int(word[:18]), word) if word.isdecimal() else (0, 0, word) for word in words)


def hostlist(names: Iterable[str]) -> str:
    """The names as a Slurm hostlist expression. Only a number at the end of a name is folded into a range.

    >>> hostlist(["node7", "node1", "node3", "node2", "login"])
    'login,node[1-3,7]'
    >>> hostlist(["gpu-009", "gpu-010", "gpu-8"])
    'gpu-8,gpu-[009-010]'
    """
    plain: set[str] = set()
    numbered: dict[str, set[str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.add(name)
        else:
            numbered.setdefault(match[1], set()).add(match[2])
    words = sorted(plain)
    for prefix in sorted(numbered):
        words += _folded(prefix, numbered[prefix])
    return ",".join(words)


def _folded(prefix: str, digits: set[str]) -> list[str]:
    """The ranges of one prefix; numbers with leading zeros keep their width."""
    widths = {len(number) for number in digits if number.startswith("0") and len(number) > 1}
    groups: dict[int, list[int]] = {}
    for number in digits:
        width = len(number) if len(number) in widths else 0
        groups.setdefault(width, []).append(int(number))
    words = []
    for width in sorted(groups):
        ranges = [_range(first, last, width) for first, last in _runs(sorted(groups[width]))]
        single = len(ranges) == 1 and "-" not in ranges[0]
        words.append(f"{prefix}{ranges[0]}" if single else f"{prefix}[{','.join(ranges)}]")
    return words


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _range(first: int, last: int, width: int) -> str:
    return f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}"
