"""The one place where text becomes cells of the screen: nothing that a terminal would obey comes through."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter


class PrintableText(LineFilter):
    """Puts blanks, as wide as it, in the place of what is no printable character.

    Facts and streams come from strangers: names, reasons and lines may hold escape sequences (OSC 52
    writes the clipboard), and characters that turn the direction of what follows. Every line of every
    widget goes through here, whoever made its text.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments, each as wide as it was."""
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [
            segment if segment.text.isprintable() else Segment(_blanked(segment.text), segment.style, segment.control)
            for segment in segments
        ]


def _blanked(text: str) -> str:
    return "".join(each if each.isprintable() else " " * cell_len(each) for each in text)
