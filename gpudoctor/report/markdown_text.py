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
    if len(line) <= room:
        return [line]
    column = max((gap.end() for gap in _GAP.finditer(line[: room - _MIN_COLUMN])), default=0)
    return wrap(line, room, subsequent_indent=" " * column, break_on_hyphens=False, drop_whitespace=True)


class _Table(TableElement):
    """Has a line below its head, and cells that wrap between words."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
        if self.header is not None and self.header.row is not None:
            for cell in self.header.row.cells:
                table.add_column(cell.content, min_width=_MIN_COLUMN, overflow="fold")
        for row in self.body.rows if self.body is not None else ():
            table.add_row(*(cell.content for cell in row.cells))
        yield table


class _Page(Markdown):
    elements = {
        **Markdown.elements,
        "heading_open": _Heading,
        "code_block": _Code,
        "fence": _Code,
        "table_open": _Table,
    }
