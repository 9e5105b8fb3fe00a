"""A square matrix with a cell for each pair of GPUs or ranks, and a cursor."""

from __future__ import annotations

from dataclasses import dataclass, field

from textual import events
from textual.app import RenderResult
from textual.binding import Binding
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.widget import Widget

from gpudoctor.tui.labels import Tone, style_of

_LABEL_WIDTH = 4
_HEAD_LINES = 1
_CURSOR = ">"
_MORE = " >"


@dataclass(frozen=True)
class Cell:
    """The text of one cell, the sign after it (one character or none), and its tone."""

    text: str
    sign: str = ""
    tone: Tone | None = None


@dataclass(frozen=True)
class Grid:
    """A matrix: `names` of rows and columns, `cells` by (row, column); a missing cell shows "-"."""

    names: tuple[str, ...] = ()
    cells: dict[tuple[int, int], Cell] = field(default_factory=dict)

    @property
    def cell_width(self) -> int:
        texts = [len(cell.text) + len(cell.sign) for cell in self.cells.values()]
        return max([*texts, *(len(name) for name in self.names), 3]) + 1

    @property
    def width(self) -> int:
        return _LABEL_WIDTH + self.cell_width * len(self.names)


NO_CELL = Cell("-")
DIAGONAL = Cell("X")


class Matrix(Widget, can_focus=True):
    """Draws a Grid; if it is too wide, the columns around the cursor. Arrow keys and mouse move the cursor."""

    DEFAULT_CSS = """
    Matrix { height: auto; width: auto; }
    """
    BINDINGS = [
        Binding("up", "move(-1, 0)", "Up", show=False),
        Binding("down", "move(1, 0)", "Down", show=False),
        Binding("left", "move(0, -1)", "Left", show=False),
        Binding("right", "move(0, 1)", "Right", show=False),
    ]

    class CursorMoved(Message):
        """The cursor moved."""

    grid = Grid()
    row = 0
    column = 1
    _first = 0  # the first column drawn

    def show_grid(self, grid: Grid) -> None:
        """Draw another grid; the cursor stays in place, or moves to the edge of a smaller grid."""
        if grid == self.grid:
            return
        resized = len(grid.names) != len(self.grid.names) or grid.cell_width != self.grid.cell_width
        self.grid = grid
        # an empty grid (not measured) keeps the cursor for the next one
        if grid.names:
            last = len(grid.names) - 1
            self.row, self.column = min(self.row, last), min(self.column, last)
        self.refresh(layout=resized)

    def put_cursor(self, row: int, column: int) -> None:
        """Move the cursor, at most to the edge of the grid."""
        last = len(self.grid.names) - 1
        row, column = min(max(row, 0), last), min(max(column, 0), last)
        if last < 0 or (row, column) == (self.row, self.column):
            return
        self.row, self.column = row, column
        self.refresh()
        if self.is_attached and isinstance(self.parent, Widget):
            self.parent.scroll_to_region(
                Region(0, self.virtual_region.y + row + _HEAD_LINES, 1, 1), animate=False, immediate=True
            )
        self.post_message(self.CursorMoved())

    def action_move(self, down: int, right: int) -> None:
        self.put_cursor(self.row + down, self.column + right)

    def on_click(self, event: events.Click) -> None:
        spot = event.get_content_offset(self)
        if spot is None or spot.x < _LABEL_WIDTH or spot.y < _HEAD_LINES:
            return
        column = self._first + (spot.x - _LABEL_WIDTH) // self.grid.cell_width
        if spot.y - _HEAD_LINES < len(self.grid.names) and column < len(self.grid.names):
            self.put_cursor(spot.y - _HEAD_LINES, column)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return min(self.grid.width + len(_MORE), container.width)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.grid.names) + _HEAD_LINES

    def render(self) -> RenderResult:
        grid, each = self.grid, self.grid.cell_width
        fit = max((self.size.width - _LABEL_WIDTH - len(_MORE)) // each, 1)
        self._first = _window(self.column, self._first, fit, len(grid.names))
        columns = range(self._first, min(self._first + fit, len(grid.names)))
        no_color = self.app.no_color
        more = _MORE if columns.stop < len(grid.names) else ""
        less = "<" if columns.start else ""
        head = "".join(grid.names[column].rjust(each) for column in columns)
        lines = [Content.assemble((f"{less:<{_LABEL_WIDTH}}{head}{more}", style_of("head", no_color)))]
        for row, name in enumerate(grid.names):
            parts: list[Content | tuple[str, str]] = [(name.rjust(_LABEL_WIDTH - 1) + " ", style_of("head", no_color))]
            parts += [self._cell(row, column, each, no_color) for column in columns]
            lines.append(Content.assemble(*parts))
        return Content("\n").join(lines)

    def _cell(self, row: int, column: int, width: int, no_color: bool) -> tuple[str, str]:
        cell = self.grid.cells.get((row, column), DIAGONAL if row == column else NO_CELL)
        # a cell without a sign leaves a blank for it if others have one, so that figures line up
        signed = any(other.sign for other in self.grid.cells.values())
        text = (cell.text + (cell.sign or (" " if signed else ""))).rjust(width)
        style = style_of(cell.tone, no_color) if cell.tone else ""
        if (row, column) == (self.row, self.column):
            return _CURSOR + text[1:], f"{style.replace('reverse', '')} reverse".strip()
        return text, style


def _window(expected: int, first: int, fit: int, count: int) -> int:
    """The first visible position so that `wanted` is visible, moving no more than needed.

    >>> _window(0, 0, 4, 8), _window(5, 0, 4, 8), _window(3, 2, 4, 8), _window(1, 2, 4, 8), _window(7, 7, 4, 8)
    (0, 2, 2, 1, 4)
    """
    first = min(max(first, expected - fit + 1), expected)
    return max(min(first, count - fit), 0)
