"""Rows of a plan's text: a label, and words that hang beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from gpudoctor.exits import printable

_LABEL = 14


def row_of(label: str, words: str, width: int) -> Iterator[str]:
    """A label, and the words beside it, in lines of `width` columns."""
    yield from hanging(f"{label:<{_LABEL}}", words, width)


def hanging(lead: str, words: str, width: int) -> Iterator[str]:
    """The words behind `lead`, further lines below them; never narrower than 20 columns."""
    room = max(width - len(lead), 20)
    lines = wrap(printable(words), room, break_long_words=False, break_on_hyphens=False) or [""]
    yield lead + lines[0]
    yield from (" " * len(lead) + line for line in lines[1:])


def wrapped(words: str, width: int) -> Iterable[str]:
    """The words in lines of `width` columns."""
    return wrap(printable(words), width, break_long_words=False, break_on_hyphens=False)
