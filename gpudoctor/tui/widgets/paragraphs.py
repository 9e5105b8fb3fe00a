"""Text that goes over several lines, beside a name."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from textual.content import Content

from gpudoctor.exits import printable

_TEXT_WIDTH_MIN = 20


def hanging(name: str, text: str, style: str, width: int) -> Iterator[Content]:
    """`name` in a style, and the text beside it in as many lines of `width` as it takes.

    The text may come from strangers: it is made printable, and never read as markup.
    """
    room = max(width - len(name), _TEXT_WIDTH_MIN)
    for place, line in enumerate(wrap(printable(text), room) or [""]):
        yield Content.assemble((name if place == 0 else " " * len(name), style), line)
