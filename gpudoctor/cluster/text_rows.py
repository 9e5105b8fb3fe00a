"""Rows of text whose first cells are never cut, at any width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP = 2
# if less width is left for the last cell, it goes on lines below the row
_WORDS_MIN = 20


class TextRows:
    """Rows of equally many cells that keep their width, but for the last one, which is folded into what is left.

    A cut node name would be another node's name, so if too little width is left, the last cell goes below the others.
    """

    def __init__(self, rows: Iterable[Sequence[Text]]) -> None:
        self._rows = [tuple(row) for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows:
            return
        *kept, _ = zip(*self._rows, strict=True)
        widest = [max(cell.cell_len for cell in column) for column in kept]
        if options.max_width - sum(widest) - _GAP * len(kept) >= _WORDS_MIN:
            table = Table.grid(padding=(0, _GAP), pad_edge=False)
            for _ in kept:
                table.add_column(no_wrap=True)
            table.add_column(overflow="fold", ratio=1)
            for row in self._rows:
                table.add_row(*row)
            yield table
            return
        for *first, words in self._rows:
            line = Text(" " * _GAP, overflow="fold").join(first)
            line.rstrip()
            yield line
            if words.plain:
                words = words.copy()
                words.overflow = "fold"
                yield Padding(words, (0, 0, 0, 2 * _GAP))
