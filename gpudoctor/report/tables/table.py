"""A table of texts that is independent of the output format: HTML renders elements, text and TUI render lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gpudoctor.facts.model.missing import Missing

NOT_KNOWN = "-"


class Column(msgspec.Struct, frozen=True):
    """A title and, for lines of text, the width in characters (0: that of the longest cell) and the alignment."""

    title: str
    width: int = 0
    left: bool = False


class Table(msgspec.Struct, frozen=True):
    """Columns, and rows with one cell per column; `gap` is the number of spaces between columns in lines of text."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    gap: int = 2

    @property
    def head(self) -> tuple[str, ...]:
        return tuple(column.title for column in self.columns)

    def turned(self, corner: str) -> Table:
        """The table transposed; `corner` is the title of the column that holds the old head."""
        first, *rest = zip(self.head, *self.rows, strict=True)
        return Table((Column(corner), *(Column(name) for name in first[1:])), tuple(rest), self.title, self.gap)


def aligned(table: Table, indent: str) -> list[str]:
    """The head and the rows as lines of text."""
    lines = [table.head, *table.rows]
    widths = [column.width or max(len(line[place]) for line in lines) for place, column in enumerate(table.columns)]
    return [indent + (" " * table.gap).join(_padded(line, table.columns, widths)).rstrip() for line in lines]


def _padded(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    each = zip(cells, columns, widths, strict=True)
    return [cell.ljust(width) if column.left else cell.rjust(width) for cell, column, width in each]


def cell(value: float | Missing | None, form: str | Callable[[float], str]) -> str:
    """A figure formatted by a format specification or a function of units.py; "-" if it is not known."""
    if value is None or isinstance(value, Missing):
        return NOT_KNOWN
    return format(value, form) if isinstance(form, str) else form(value)
