"""Host names: Slurm hostlist expressions (node[1-3,7]), short names and natural sorting."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_pattern
from gpudoctor.text.grouped import grouped
from gpudoctor.text.units import runs

# what a host list may contain: a name from a report must not inject a second host, an option or a command
_HOST_NAME = lazy_pattern(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")
_DIGITS = lazy_pattern(r"([0-9]+)")
_NUMBERED = lazy_pattern(r"(.*?)([0-9]{1,9})", re.DOTALL)
# one word of a host list, as far as the next comma that is in no brackets; its parts
_WORD = lazy_pattern(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+")
_PART = lazy_pattern(r"\[([^\[\]]*)\]|([^\[\]]+)")
_SPAN = lazy_pattern(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_NAMES_MAX = 65_536  # Slurm's own limit of nodes


def is_host_name(name: str) -> bool:
    """Whether the name is allowed in a host list.

    >>> is_host_name("gpu-07.cluster"), is_host_name("a b"), is_host_name("-x"), is_host_name("node[1-9]")
    (True, False, False, False)
    """
    return _HOST_NAME.fullmatch(name) is not None


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts node2 before node10."""
    parts = _DIGITS.split(name)
    return tuple((1, int(word[:18]), word) if word.isdecimal() else (0, 0, word) for word in parts)


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
    parts = sorted(plain)
    for prefix in sorted(numbered):
        parts += _folded(prefix, numbered[prefix])
    return ",".join(parts)


def expand_hostlist(text: str) -> tuple[str, ...]:
    """The names in a Slurm hostlist expression, each once. Raise UserError if it is none.

    >>> expand_hostlist("n[1-3,7],login")
    ('n1', 'n2', 'n3', 'n7', 'login')
    >>> expand_hostlist("r[1-2]n[08-09]-a")
    ('r1n08-a', 'r1n09-a', 'r2n08-a', 'r2n09-a')
    """
    names: dict[str, None] = {}
    if _WORD.sub("", text).replace(",", "").strip():
        raise _no_hostlist(text)
    for word in _WORD.findall(text):
        parts = [_numbers(text, span) if span else [plain] for span, plain in _PART.findall(word)]
        for name in product(*parts):
            names["".join(name)] = None
            if len(names) > _NAMES_MAX:
                raise UserError(f"{text[:60]}: more than {_NAMES_MAX} hosts")
    if not names or not all(map(is_host_name, names)):
        raise _no_hostlist(text)
    return tuple(names)


def _numbers(text: str, spans: str) -> list[str]:
    numbers: list[str] = []
    for span in spans.split(","):
        match = _SPAN.fullmatch(span.strip())
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if match is None or not 0 <= int(last) - int(first) < _NAMES_MAX:
            raise _no_hostlist(text)
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def _no_hostlist(text: str) -> UserError:
    return UserError(f"{text[:60]!r} is no list of hosts; one looks like n[1-4,7],login")


def short_name(name: str) -> str:
    """The name without its domain, as Slurm uses it.

    >>> short_name("gpu-07.cluster.example"), short_name("10.0.0.7")
    ('gpu-07', '10.0.0.7')
    """
    first = name.partition(".")[0]
    return name if first.isdecimal() else first


class Hosts:
    """A list of hosts that is asked for names with and without a domain.

    >>> "n1.example" in Hosts(["n1"]), "n1" in Hosts(["n1.example"]), "n1.east" in Hosts(["n1.west"])
    (True, True, False)
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._shortened = frozenset(map(short_name, self._names))

    def __contains__(self, name: str) -> bool:
        return name in self._names or name in self._shortened or short_name(name) in self._names


def one_name_each(names: Iterable[str]) -> dict[str, str]:
    """Each name with a domain that is there without it too: the short name, unless several domains have it.

    >>> one_name_each(["n1", "n1.example", "n2.example", "n3", "n3.east", "n3.west"])
    {'n1.example': 'n1'}
    """
    present = set(names)
    whole = grouped(
        (short, name) for name in sorted(present) if (short := short_name(name)) != name and short in present
    )
    return {found[0]: short for short, found in whole.items() if len(found) == 1}


def _folded(prefix: str, digits: set[str]) -> list[str]:
    """The ranges of one prefix; numbers with leading zeros keep their width."""
    widths = {len(number) for number in digits if number.startswith("0") and len(number) > 1}
    groups = grouped((len(number) if len(number) in widths else 0, int(number)) for number in digits)
    parts = []
    for width in sorted(groups):
        ranges = [_range(first, last, width) for first, last in runs(sorted(groups[width]))]
        single = len(ranges) == 1 and "-" not in ranges[0]
        parts.append(f"{prefix}{ranges[0]}" if single else f"{prefix}[{','.join(ranges)}]")
    return parts


def _range(first: int, last: int, width: int) -> str:
    return f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}"
