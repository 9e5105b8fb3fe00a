"""Reading /sys, /proc and the output of programs: a value, or Missing with the right kind."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from gpudoctor.facts.model.missing import Missing
from gpudoctor.lazy import lazy_imports

with lazy_imports():  # most readers start no program, and list no CPUs
    from gpudoctor.process import command
    from gpudoctor.text import units

if TYPE_CHECKING:
    from pathlib import Path


class SysPath(str):
    """A path below a root, with `/`, `name` and `parent` as pathlib.Path has them, which may take its place.

    To import pathlib, with the modules that it needs for URLs, and to use it would be 4 % of the processor time of a
    quick check; a join costs an eighth of Path's (both measured on Python 3.11).
    """

    __slots__ = ()

    def __truediv__(self, below: str) -> SysPath:
        """`below` is relative."""
        return SysPath(f"{self.rstrip('/')}/{below}")

    @property
    def name(self) -> str:
        return self.rpartition("/")[2]

    @property
    def parent(self) -> SysPath:
        return SysPath(self.rpartition("/")[0] or "/")


AnyPath: TypeAlias = "SysPath | Path"
ROOT = SysPath("/")

# Drivers return others (EINVAL, ENXIO, EIO ...) for an attribute that is not available now
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENODEV}
_DENIED = {errno.EACCES, errno.EPERM}
_MAX_BYTES = 1 << 20
_MAX_DIGITS = 5  # the largest machines have some thousand CPUs


def missing_from(error: OSError, what: str) -> Missing:
    """The Missing for a failed read: absent if the file does not exist, denied without permission, else failed."""
    if error.errno in _ABSENT:
        return Missing(f"{what}: not there", "absent")
    if error.errno in _DENIED:
        return Missing(f"{what}: no permission", "denied")
    return Missing(f"{what}: {error.strerror or error}", "failed")


def present(path: AnyPath) -> bool:
    """Whether the path exists, even as a broken link; False also without permission to look."""
    return os.path.lexists(path)


def read_text(path: AnyPath, max_bytes: int = _MAX_BYTES) -> str | Missing:
    """The file's text without surrounding whitespace; bytes that are not UTF-8 become U+FFFD."""
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes).decode("utf-8", "replace").strip()
    except OSError as error:
        return missing_from(error, str(path))


def read_int(path: AnyPath) -> int | Missing:
    """The number in the file, decimal or 0x...; other text is `failed` and quoted in the reason."""
    text = read_text(path)
    if isinstance(text, Missing):
        return text
    try:
        return int(text, 0)
    except ValueError:
        return Missing(f"{path}: reads {text[:80]!r}, not a number", "failed")


def read_match(path: AnyPath, pattern: re.Pattern[str]) -> str | Missing:
    """The first group of the pattern's first match; text without a match is `failed` and quoted in the reason."""
    text = read_text(path)
    if isinstance(text, Missing):
        return text
    found = pattern.search(text)
    return found[1] if found else Missing(f"{path.name} reads {text[:40]!r}", "failed")


def list_names(path: AnyPath) -> tuple[str, ...] | Missing:
    """The names in a folder, sorted."""
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError as error:
        return missing_from(error, str(path))


def link_name(path: AnyPath) -> str | Missing | None:
    """The last component of a symbolic link's target; None if there is no link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        return missing_from(error, str(path))


def key_values(text: str) -> dict[str, str]:
    """The pairs of lines `Key:  value` as in /proc/meminfo and /proc/self/status; other lines are left out.

    >>> key_values("MemTotal:   16 kB")
    {'MemTotal': '16 kB'}
    """
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def parse_cpu_list(text: str) -> frozenset[int] | None:
    """The numbers in a kernel list such as 0-3,8; None if the text is not one.

    >>> sorted(parse_cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return None
        # a list from an untrusted file must not fill the memory
        if len(first) > _MAX_DIGITS or len(last) > _MAX_DIGITS:
            return None
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def format_cpu_list(cpus: frozenset[int]) -> str:
    """A set of numbers as a kernel list.

    >>> format_cpu_list(frozenset({0, 1, 2, 8}))
    '0-2,8'
    """
    return units.ranges(sorted(cpus), ",")


def run_command(argv: Sequence[str], deadline_s: float, max_bytes: int = 4 << 20) -> command.Completed | Missing:
    """Like `process.command`, in the C locale, so that messages do not depend on the user's.

    Missing if the program is not installed, not allowed or not finished in time.
    """
    try:
        return command.run_command(argv, deadline_s, max_bytes, {**os.environ, "LC_ALL": "C", "LANG": "C"})
    except command.CommandLateError as error:
        return Missing(str(error), "failed")
    except FileNotFoundError:
        return Missing(f"{argv[0]} is not installed", "absent")
    except PermissionError:
        return Missing(f"{argv[0]}: no permission to run it", "denied")
    except OSError as error:
        return Missing(f"{argv[0]}: {error.strerror}", "failed")
