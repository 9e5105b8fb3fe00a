"""A page of Markdown as text for a terminal: headings, lists, tables and code, wrapped between words."""

from __future__ import annotations

import re
from textwrap import wrap

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, TableElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpudoctor.report.text import laid_out

# longer lines are hard to read
WIDEST = 100
_MIN_COLUMN = 8
_WORDS_MIN = 20  # of a last column
_INDENT = 4  # of code
_UNBROKEN = "\ue000"  # no letter of any script; rich breaks lines at every kind of blank
_GAP = re.compile(r"\S {2,}(?=\S)|^ +(?=\S)")


def page_as_text(markdown: str, *, width: int, color: bool) -> str:
    """The page for `width` columns, at most `WIDEST`.

    Code in a sentence, such as a command, is not broken; without colour it keeps its backticks.
    """
    width = min(width, WIDEST)
    page = _Page(markdown, hyperlinks=False)
    for code in (inner for token in page.parsed for inner in token.children or () if inner.type == "code_inline"):
        whole = code.content.replace(" ", _UNBROKEN) if len(code.content) < width - _INDENT else code.content
        code.content = whole if color else f"`{whole}`"
    return laid_out([page], width=width, color=color).replace(_UNBROKEN, " ")


class _Heading(Heading):
    """Starts at the left edge: rich centres headings and draws a box around the first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield Text(self.text.plain, style="bold" if self.tag == "h1" else "bold cyan")


class _Code(CodeBlock):
    """Is indented and keeps its lines; one that is too long continues below its last column."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - _INDENT
        lines = [part for line in str(self.text).rstrip().splitlines() for part in _within(line, room)]
        yield Padding(Text("\n".join(lines), no_wrap=True), (0, 0, 0, _INDENT))


def _within(line: str, room: int) -> list[str]:
    if len(line) - len(line.lstrip()) > room - _WORDS_MIN:  # what continues a last column
        line = " " * _INDENT + line.lstrip()
    if len(line) <= room:
        return [line]
    column = max((gap.end() for gap in _GAP.finditer(line[: room - _MIN_COLUMN])), default=0)
    first, indent = [], " " * column
    if room - column < _WORDS_MIN:  # the last column goes on below the others
        first, line, indent = [line[:column].rstrip()], line[column:], " " * _INDENT
    lines = wrap(line, room, initial_indent=indent if first else "", subsequent_indent=indent, break_on_hyphens=False)
    return [*filter(None, first), *lines]


class _Table(TableElement):
    """Has a line below its head, and cells that wrap between words; without room for columns, a block for each row."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads = [cell.content for cell in self.header.row.cells] if self.header and self.header.row else []
        rows = [[cell.content for cell in row.cells] for row in (self.body.rows if self.body is not None else ())]
        if options.max_width < _WORDS_MIN * len(heads):
            for first, *others in rows:
                yield first
                for head, cell in zip(heads[1:], others, strict=True):
                    yield Padding(Text.assemble(head, ": ", cell), (0, 0, 0, _INDENT))
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
        for head in heads:
            table.add_column(head, min_width=_MIN_COLUMN, overflow="fold")
        for row in rows:
            table.add_row(*row)
        yield table


class _Page(Markdown):
    elements = {
        **Markdown.elements,
        "heading_open": _Heading,
        "code_block": _Code,
        "fence": _Code,
        "table_open": _Table,
    }
