"""Lines that grow at the end: drawn one by one where they are seen, and followed unless scrolled up."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

Run = tuple[str, str]  # text, and the name of a component class ("" for plain text)


class LogView(ScrollView, can_focus=True):
    """Rows of runs; `append` draws nothing that is out of sight. Text is data and never markup."""

    COMPONENT_CLASSES = {"log--time", "log--kernel", "log--driver", "log--run", "log--note"}
    DEFAULT_CSS = """
    LogView {
        height: 1fr;
        & > .log--time { color: $text-muted; }
        & > .log--kernel { color: $text-warning; text-style: bold; }
        & > .log--driver { color: $text-error; text-style: bold; }
        & > .log--run { color: $text-accent; }
        & > .log--note { color: $text-muted; }
    }
    LogView:nocolor {
        & > .log--time { color: $foreground; }
        & > .log--kernel { color: $foreground; text-style: bold; }
        & > .log--driver { color: $foreground; text-style: bold reverse; }
        & > .log--run { color: $foreground; }
        & > .log--note { color: $foreground; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[tuple[Run, ...]] = []
        self._widest = 0
        self._follows = True

    @property
    def rows(self) -> tuple[str, ...]:
        """What stands there, without styles."""
        return tuple("".join(text for text, _ in row) for row in self._rows)

    def replace(self, rows: Sequence[tuple[Run, ...]]) -> None:
        """Other lines altogether; the end is shown."""
        self._rows, self._widest = [], 0
        self._add(rows)
        self._follow()
        self.refresh()

    def append(self, rows: Sequence[tuple[Run, ...]], dropped: int = 0) -> None:
        """Add lines at the end after `dropped` of the oldest went; the end stays in sight if it was."""
        follows = self._follows
        del self._rows[:dropped]
        first = len(self._rows)
        self._add(rows)
        if dropped:
            # what is in sight stays in sight
            self.scroll_to(y=max(self.scroll_offset.y - dropped, 0), animate=False, immediate=True, force=True)
            self.refresh()
        if follows:
            self._follow()
        top = first - self.scroll_offset.y
        if 0 <= top < self.size.height:
            self.refresh(Region(0, top, self.size.width, min(len(rows), self.size.height - top)))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._follows = self.is_vertical_scroll_end

    def on_resize(self, event: events.Resize) -> None:
        if self._follows:
            self._follow()

    def _follow(self) -> None:
        self._follows = True
        # force: the scroll bar that tells Textual that there is something to scroll comes with the next layout
        self.scroll_end(animate=False, immediate=True, force=True, x_axis=False)

    def render_line(self, y: int) -> Strip:
        across, down = self.scroll_offset
        width = self.scrollable_content_region.width
        plain = self.rich_style
        if not 0 <= y + down < len(self._rows):
            return Strip.blank(width, plain)
        segments = [
            Segment(text, self.get_component_rich_style(name) if name else plain) for text, name in self._rows[y + down]
        ]
        return Strip(segments).crop_extend(across, across + width, plain)

    def _add(self, rows: Sequence[tuple[Run, ...]]) -> None:
        self._rows += rows
        widths = [sum(cell_len(text) for text, _ in row) for row in rows]
        self._widest = max([self._widest, *widths])
        self.virtual_size = Size(self._widest, len(self._rows))
