"""Draws the rows of the check list, with a cursor that keys and mouse move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpudoctor.exits import printable
from gpudoctor.tui.labels import drawn_style
from gpudoctor.tui.panes.check_rows import RUN, CheckRow

_STATUS_WIDTH = 7
_TONES = {"FAIL": "fail", "unknown": "unknown", "warn": "warn", "PASS": "pass", "skip": "skip", RUN: "title"}
_DETAIL_MIN = 6


class CheckLines(ScrollView, can_focus=True):
    """One line for each row. The detail at the right is dropped first if there is no room."""

    ALLOW_SELECT = False
    DEFAULT_CSS = "CheckLines { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "move(-100000)", "First", show=False),
        Binding("end", "move(100000)", "Last", show=False),
        Binding("left", "fold(True)", "Fold", show=False),
        Binding("right", "fold(False)", "Unfold", show=False),
        Binding("enter,space", "enter", "Page / fold", show=False),
    ]

    @dataclass
    class Moved(Message):
        """The user moved the cursor to this row."""

        row: CheckRow

    @dataclass
    class Entered(Message):
        """The user pressed enter on this row, or clicked it twice."""

        row: CheckRow

    @dataclass
    class Folded(Message):
        """The user folded (`shut`) or unfolded the domain of this row."""

        row: CheckRow
        shut: bool

    def __init__(self) -> None:
        super().__init__()
        self.rows: tuple[CheckRow, ...] = ()
        self._at = 0
        self._empty = ""
        self._name_width = 0

    @property
    def row(self) -> CheckRow | None:
        """The row under the cursor."""
        return self.rows[self._at] if self._at < len(self.rows) else None

    def show_rows(self, rows: Sequence[CheckRow], empty: str) -> None:
        """Replace the rows; the cursor stays on its check, or moves to its domain if that was folded."""
        before = self.row
        self.rows, self._empty = tuple(rows), empty
        self._name_width = max((len(row.name) for row in self.rows), default=0)
        was_at = self._at
        if before is not None:
            places = {(row.domain, row.check_id): place for place, row in enumerate(self.rows)}
            place = places.get((before.domain, before.check_id), places.get((before.domain, None)))
            self._at = min(self._at, max(0, len(self.rows) - 1)) if place is None else place
        self.virtual_size = Size(0, len(self.rows))
        if self._at != was_at:
            # keep the cursor's line at its place on the screen
            self.scroll_to(y=self.scroll_offset.y + self._at - was_at, animate=False, force=True)
        self.refresh()

    def move_to(self, row: CheckRow) -> None:
        """Move the cursor to one of the rows."""
        self._put(self.rows.index(row))

    def _put(self, place: int) -> bool:
        """Move the cursor; whether it moved."""
        place = max(0, min(place, len(self.rows) - 1))
        moved, self._at = place != self._at, place
        if self.rows:
            self.scroll_to_region(Region(0, place, 1, 1), animate=False, force=True, x_axis=False)
        self.refresh()
        return moved

    def _user_put(self, place: int) -> None:
        if self._put(place) and self.row is not None:
            self.post_message(self.Moved(self.row))

    def action_move(self, by: int) -> None:
        self._user_put(self._at + by)

    def action_page(self, direction: int) -> None:
        self._user_put(self._at + direction * max(1, self.size.height - 1))

    def action_enter(self) -> None:
        if self.row is not None:
            self.post_message(self.Entered(self.row))

    def action_fold(self, shut: bool) -> None:
        if self.row is not None:
            self.post_message(self.Folded(self.row, shut))

    def on_click(self, event: events.Click) -> None:
        place = event.y + self.scroll_offset.y
        if not 0 <= place < len(self.rows):
            return
        row = self.rows[place]
        self._user_put(place)
        if row.check_id is None or event.chain == 2:
            self.post_message(self.Entered(row))

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        # the scrollbar is drawn over the last column of `size`
        width, place = self.scrollable_content_region.width, y + self.scroll_offset.y
        if place >= len(self.rows):
            text = self._empty if place == 0 else ""
            return Strip([Segment(text, self.rich_style)]).adjust_cell_length(width, self.rich_style)
        row = self.rows[place]
        under: tuple[str, ...] = ()
        if place == self._at:
            under = ("cursor-focused" if self.has_focus else "cursor",)
        segments = [
            Segment(text, drawn_style(self, tone, *under))
            for text, tone in _pieces(row, width, self._name_width, cursor=place == self._at)
        ]
        return Strip(segments).adjust_cell_length(width, drawn_style(self, *under))


def _pieces(row: CheckRow, width: int, name_width: int, *, cursor: bool) -> list[tuple[str, str]]:
    """(text, tone) from the left; a domain starts at the left edge, a check is indented.

    `name_width`: that of the longest name, so that the details line up.
    """
    tone = _TONES.get(row.word, "")
    name = printable(row.name)
    mark = ("v " if row.opened else "> ") if row.check_id is None else ("  > " if cursor else "    ")
    # both kinds of row have their details in the same column
    room = width - 4 - _STATUS_WIDTH - 1
    detail = printable(row.detail)
    detail_room = room - name_width - 2
    if detail_room < _DETAIL_MIN:
        detail_room = 0
    shown = detail if len(detail) <= detail_room else detail[: max(0, detail_room - 1)] + "~" if detail_room else ""
    name_room = room - (detail_room + 2 if detail_room else 0) + (4 - len(mark))
    return [
        (mark, ""),
        (f"{row.word:<{_STATUS_WIDTH}} ", tone),
        (f"{name[:name_room]:<{name_room}}  ", "head" if row.check_id is None else ""),
        (shown, "detail"),
    ]
