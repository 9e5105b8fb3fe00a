"""Dumps of vendor tools, read as facts. What a dump does not hold is Missing, never a default."""

from __future__ import annotations

from gpudoctor.errors import UserError
from gpudoctor.facts.model.missing import Missing

MOST_GPUS = 1024  # no machine has so many, and each is compared with all of its peers
LONGEST_TEXT = 1000
# as nvidia-smi and lspci print it, in capitals or not; a domain of 0 may be left out
BUS_ID = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
ABSENT = Missing("not in this capture", "absent")


def clipped(text: str) -> str:
    """A string out of a dump, at most 1,000 characters: a stranger's name may be megabytes long."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."


def printable(name: str) -> str:
    r"""A file's name as one line of UTF-8, whatever bytes the file system holds.

    >>> printable("caf\udce9"), printable("a\nb")
    ('caf\\udce9', 'a\\nb')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


class SourceError(UserError):
    """A source that cannot be read: one line that names the file and the place in it.

    Parsers raise it with the place only; whoever opened the file puts its name in front.
    """
