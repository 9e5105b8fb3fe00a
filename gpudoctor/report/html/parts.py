"""What a page consists of: every application describes its page with these parts, and one template draws them all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct

from gpudoctor.facts.model.missing import Missing

# a tuple is its cells side by side
Cell: TypeAlias = "str | Chip | Code | Command | Strong | Short | Items | Unfold | RangeMark | tuple[Cell, ...]"
Part: TypeAlias = (
    "Paragraph | Preformatted | Pairs | Rows | Findings | Card | Fold | Bars | Lanes | PairTable | Plot | Items"
)


class Chip(Struct, frozen=True):
    """A status as a coloured word; `word` if it is another than the status itself."""

    status: str
    word: str = ""


class Code(Struct, frozen=True):
    """A name, path or value in type of fixed width."""

    text: str


class Command(Struct, frozen=True):
    """A command to copy: on a line of its own, never wrapped."""

    text: str


class Strong(Struct, frozen=True):
    text: str


class Short(Struct, frozen=True):
    """Text on one line, in place of a longer one, which shows under the pointer."""

    text: str
    full: str


class Items(Struct, frozen=True):
    """A list; `style` is "steps" (numbered), "plain" (without bullets) or "wrong"."""

    cells: tuple[Cell, ...]
    style: str = "plain"


class Unfold(Struct, frozen=True):
    """A line that unfolds to more lines."""

    title: str
    cells: tuple[Cell, ...]


class RangeMark(Struct, frozen=True):
    """A range of values as a line: a tick at the median, a dot for each outlier; all between 0 and 1."""

    label: str
    median: float
    outliers: tuple[float, ...]


class Paragraph(Struct, frozen=True):
    """A paragraph; `style` is "" or "legend"."""

    cell: Cell
    style: str = ""


class Preformatted(Struct, frozen=True):
    """Preformatted text."""

    text: str
    title: str = ""


class Pairs(Struct, frozen=True):
    """Names with values."""

    rows: tuple[tuple[Cell, Cell], ...]


class Rows(Struct, frozen=True):
    """A table; the first cell of each row is its heading. `wraps`: cells contain sentences."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    wraps: bool = False


class Findings(Struct, frozen=True):
    """Checks with what they found: (status, id, title, findings)."""

    rows: tuple[tuple[str, str, str, Items], ...]


class Card(Struct, frozen=True):
    """A box with the colour of a status."""

    status: str
    title: Cell
    parts: tuple[Part, ...]


class Fold(Struct, frozen=True):
    """A line that unfolds to parts."""

    title: Cell
    parts: tuple[Part, ...]
    opened: bool = False


class Bar(Struct, frozen=True):
    """A row of a bar chart: its parts in the order of their names, and a status if there is a problem."""

    name: str
    parts: tuple[float, ...]
    status: str | None = None


class Bars(Struct, frozen=True):
    """Stacked bars of ms, one below the other, on one scale; a table with the same figures has to follow."""

    label: str
    names: tuple[str, ...]
    bars: tuple[Bar, ...]

    @property
    def longest(self) -> float:
        return max((sum(map(drawable, bar.parts)) for bar in self.bars), default=0.0) or 1.0


class Mark(Struct, frozen=True):
    """An event at `at` (0 to 1) of a lane; `kind` is cause, victim or event."""

    at: float
    kind: str
    text: str


class Lane(Struct, frozen=True):
    name: str
    marks: tuple[Mark, ...]


class Lanes(Struct, frozen=True):
    """Events of each rank from left to right; `start` and `end` are the words at the ends of the axis."""

    label: str
    lanes: tuple[Lane, ...]
    start: str
    end: str


class PairTable(Struct, frozen=True):
    """A square table of pairs: names of rows and columns, and (text, sign, class) in each place."""

    label: str
    names: tuple[str, ...]
    rows: tuple[tuple[tuple[str, str, str], ...], ...]
    legend: str


class Point(Struct, frozen=True):
    x: float
    y: float
    text: str


class Curve(Struct, frozen=True):
    name: str
    points: tuple[Point, ...]


class Plot(Struct, frozen=True):
    """Curves of GB/s over message sizes; places are in the units of the drawing, which is 720 wide."""

    label: str
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    curves: tuple[Curve, ...]


class Section(Struct, frozen=True):
    """A titled part of the page."""

    title: str
    parts: tuple[Part, ...]
    id: str
    opened: bool = False


class Page(Struct, frozen=True, kw_only=True):
    """A page in the order in which all pages are read: verdict, what to do, the evidence, the rest.

    `word` is the badge with the colour of `status`. `banners` are (word, text, "loud" or "quiet"). `counts` are
    (status, word, number). Sections of `rest` are folded, unless they are `opened`.
    """

    title: str
    kicker: str
    heading: str
    status: str
    word: str
    verdict: str
    reason: str = ""
    where: str = ""
    counts: tuple[tuple[str, str, int], ...] = ()
    banners: tuple[tuple[str, str, str], ...] = ()
    do: tuple[Section, ...] = ()
    evidence: tuple[Section, ...] = ()
    rest: tuple[Section, ...] = ()


def section(title: str, parts: Iterable[Part | None], id_: str, *, opened: bool = False) -> tuple[Section, ...]:
    """A section, or none if it has no parts."""
    inside = tuple(part for part in parts if part is not None)
    return (Section(title, inside, id_, opened),) if inside else ()


def pairs(*rows: tuple[Cell, Cell | Missing | None]) -> Pairs:
    """Those rows that have a value."""
    return Pairs(tuple((name, cell) for name, cell in rows if cell and not isinstance(cell, Missing)))


def drawable(value: float) -> float:
    """The value limited to what can be drawn: a report from elsewhere may contain any number."""
    return min(max(value, 0.0), 1e15)
