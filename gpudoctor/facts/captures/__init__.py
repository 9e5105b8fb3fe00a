"""Read dumps of vendor tools as facts. What a dump does not contain is Missing, never a default."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node

MOST_GPUS = 1024  # no machine has this many, and each GPU is compared with all of its peers
LONGEST_TEXT = 1000
# as nvidia-smi and lspci print it, in upper or lower case; a domain of 0 may be left out
BUS_ID = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
ABSENT = Missing("not in this capture", "absent")


class Loaded(msgspec.Struct, frozen=True):
    """The node from a source, and the measurements if the source is a report."""

    node: Node
    measurements: Measurements | None = None


def clipped(text: str) -> str:
    """A string from a dump, cut to 1,000 characters: a name in an untrusted file may be megabytes long."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."


def printable(name: str) -> str:
    r"""A file name as one line of valid UTF-8, whatever bytes the file system returned.

    >>> printable("caf\udce9"), printable("a\nb")
    ('caf\\udce9', 'a\\nb')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


class SourceError(UserError):
    """A source cannot be read. The message is one line with the file and the position in it.

    Parsers raise it with the position only; the code that opened the file prepends its name (`naming`).
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class NotUnderstoodError(SourceError):
    """A text about a node says nothing that a reader knows. `node`: nothing is known of it but these words."""

    def __init__(self, message: str, node: Node) -> None:
        super().__init__(message)
        self.node = node


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Prepend the name of a source to each SourceError from inside that does not begin with it; an OSError is one."""
    name = printable(name)
    try:
        yield
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror or error}") from None
    except SourceError as error:
        reported = str(error)
        if not reported.startswith((f"{name}: ", f"{name.rstrip('/')}/")):
            error.args = (f"{name}: {reported}",)
        raise
