"""`ulimit -a`, `ulimit -l`, and /proc/PID/limits: what a process may use."""

from __future__ import annotations

import re
from typing import Any

from gpudoctor.facts.captures.reader import Block, Part, TextReader
from gpudoctor.facts.model.node import Host, Node

# the soft limit stands behind the unit and the option: "max locked memory           (kbytes, -l) 65536"
_ULIMIT = re.compile(
    r"(?:core file size|max locked memory|open files|max user processes|data seg size|real-time non-blocking time)"
    r"\s+\((?:[a-z0-9 -]{1,20}, )?-[A-Za-z]\)\s"
)
_ULIMIT_MORE = re.compile(r"[a-zA-Z][\w -]{2,40}\((?:[a-z0-9 -]{1,20}, )?-([A-Za-z])\)\s+(unlimited|\d{1,20})\s*$")
_PROC = re.compile(r"Limit\s+Soft Limit\s+Hard Limit\s+Units")
_PROC_MORE = re.compile(r"Max ([a-z -]{3,30}?)\s{2,}(unlimited|\d{1,20})\s+(?:unlimited|\d{1,20})(?:\s|$)")
_OPTION = re.compile(r"\bulimit -(?:[HS]{1,2} ?-?)?([lnu])\s*$")
_VALUE = re.compile(r"(unlimited|\d{1,20})\s*$")
_LEAVES = {"l": "memlock_kib", "n": "open_files", "u": "processes"}
_PROC_LEAVES = {"locked memory": "memlock_kib", "open files": "open_files", "processes": "processes"}


def read_ulimit(block: Block) -> Part:
    """`ulimit -a`; one value alone is known by the command above it."""
    leaves: dict[str, Any] = {}
    option = _OPTION.search(block.command)
    for line in block.lines:
        if found := _ULIMIT_MORE.match(line):
            leaf, value = _LEAVES.get(found[1]), found[2]
        elif option and (alone := _VALUE.match(line)):
            leaf, value = _LEAVES[option[1]], alone[1]
        else:
            continue
        if leaf:
            leaves.setdefault(leaf, _limit(value))
    return Part(Node(host=Host(**leaves))) if leaves else Part()


def read_proc_limits(block: Block) -> Part:
    """/proc/self/limits, in bytes."""
    leaves: dict[str, Any] = {}
    for line in block.lines:
        if (found := _PROC_MORE.match(line)) and (leaf := _PROC_LEAVES.get(found[1])):
            value = _limit(found[2])
            leaves[leaf] = value >> 10 if leaf == "memlock_kib" and value is not None else value
    return Part(Node(host=Host(**leaves))) if leaves else Part()


def _limit(value: str) -> int | None:
    return None if value == "unlimited" else int(value)


LIMIT_READERS: tuple[TextReader, ...] = (
    TextReader(
        "ulimit",
        _ULIMIT.match,
        lambda line: _ULIMIT_MORE.match(line) or _VALUE.match(line),
        read_ulimit,
        after=_OPTION.search,
    ),
    TextReader("/proc/self/limits", _PROC.match, _PROC_MORE.match, read_proc_limits),
)
