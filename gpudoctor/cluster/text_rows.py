"""Rows of text whose first cells are never cut, at any width."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP = 2
# if less width is left for the last cell, it goes on lines below the row
_WORDS_MIN = 20


class TextRows:
    """Rows of `columns` cells that keep their width, and a last cell that gets the remaining width.

    A cut node name would be another node's name, so if too little width is left, the last cell goes below the others.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows: list[tuple[list[Text], Text]] = []

    def add_row(self, *cells: Text) -> None:
        """Add a row; the last of the cells is the one that is folded."""
        *first, words = cells
        assert len(first) == self._columns
        self._rows.append((first, words))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = [max((row[0][n].cell_len for row in self._rows), default=0) for n in range(self._columns)]
        if options.max_width - sum(widest) - _GAP * self._columns >= _WORDS_MIN:
            table = Table.grid(padding=(0, _GAP), pad_edge=False)
            for _ in range(self._columns):
                table.add_column(no_wrap=True)
            table.add_column(overflow="fold", ratio=1)
            for first, words in self._rows:
                table.add_row(*first, words)
            yield table
            return
        for first, words in self._rows:
            line = Text(" " * _GAP, overflow="fold").join(first)
            line.rstrip()
            yield line
            if words.plain:
                words = words.copy()
                words.overflow = "fold"
                yield Padding(words, (0, 0, 0, 2 * _GAP))
