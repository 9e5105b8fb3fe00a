"""A widget of styled rows that redraws only changed ones, and the filter that makes text printable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.content import Content
from textual.filter import LineFilter
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gpudoctor.text.output import printable
from gpudoctor.tui.labels import drawn_style

Run = tuple[str, str]  # text, and its tone ("" for plain text)
_TEXT_WIDTH_MIN = 20


class Row(NamedTuple):
    """One line of a `Lines`: runs from the left, and whether it is under the cursor."""

    runs: tuple[Run, ...]
    cursor: bool = False


def row(*runs: Run | str) -> Row:
    """A row of runs; a string is plain text."""
    return Row(tuple((run, "") if isinstance(run, str) else run for run in runs))


def length(runs: Sequence[Run]) -> int:
    """The width of the runs in cells."""
    return sum(cell_len(text) for text, _ in runs)


def cut(line: Row, width: int) -> Row:
    """The row, or as much of it as fits before a "…": without the sign "GPU 0-7" could end as "GPU 0"."""
    if length(line.runs) <= width:
        return line
    left, shown = width - 1, list[Run]()
    for text, tone in line.runs:
        shown.append((text if cell_len(text) <= left else set_cell_size(text, max(left, 0)), tone))
        left -= cell_len(text)
        if left <= 0:
            break
    return Row((*shown, ("…", "")), line.cursor)


class Lines(Widget):
    """Draws rows; an update redraws only those that changed. Text is never parsed for markup."""

    ALLOW_SELECT = False
    DEFAULT_CSS = "Lines { height: auto; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._rows: tuple[Row, ...] = ()
        self._drawn: dict[tuple[Row, int], Strip] = {}
        self._styles: dict[tuple[str, bool], Style] = {}

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Replace the rows and redraw those that changed."""
        before, self._rows = self._rows, tuple(rows)
        if len(before) != len(self._rows):
            self.refresh(layout=self.styles.height is not None and self.styles.height.is_auto)
            return
        width = self.size.width
        changed = [Region(0, y, width, 1) for y, (old, new) in enumerate(zip(before, rows, strict=True)) if old != new]
        if changed:
            self.refresh(*changed)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return max(1, len(self._rows))

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawn.clear()
        self._styles.clear()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        key = (self._rows[y], width)
        strip = self._drawn.get(key)
        if strip is None:
            if len(self._drawn) > 256:
                self._drawn.clear()
            each = self._rows[y]
            segments = [Segment(text, self._style(name, each.cursor)) for text, name in each.runs]
            strip = Strip(segments).adjust_cell_length(width, self._style("", each.cursor))
            self._drawn[key] = strip
        return strip

    def _style(self, name: str, cursor: bool) -> Style:
        key = (name, cursor)
        if key not in self._styles:
            self._styles[key] = drawn_style(self, *(["cursor"] if cursor else []), name)
        return self._styles[key]


def hanging(name: str, text: str, tone: str, width: int) -> Iterator[Content]:
    """`name` in a tone, with the text beside it wrapped to lines of `width`.

    The text may be untrusted: it is made printable and never parsed for markup.
    """
    room = max(width - len(name), _TEXT_WIDTH_MIN)
    for number, line in enumerate(wrap(printable(text), room) or [""]):
        yield Content.assemble((name if number == 0 else " " * len(name), tone), line)


class PrintableText(LineFilter):
    """Replaces every unprintable character by blanks of the same width.

    Facts and streams are untrusted: names, reasons and lines may contain escape sequences (OSC 52
    writes the clipboard) and characters that change the text direction. Every line of every widget
    passes through this filter.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments with unchanged widths."""
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [
            segment if segment.text.isprintable() else Segment(_blanked(segment.text), segment.style, segment.control)
            for segment in segments
        ]


def _blanked(text: str) -> str:
    return "".join(each if each.isprintable() else " " * cell_len(each) for each in text)
