"""The Log tab: kernel lines and events of gpudoctor as they arrive."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from gpudoctor.facts.model.missing import Missing
from gpudoctor.text.output import printable
from gpudoctor.tui.labels import clock, drawn_style
from gpudoctor.tui.panes.pane import FILTER_KEYS, FilteredPane, FilterLine, put
from gpudoctor.tui.state import LogKind, LogLine
from gpudoctor.tui.widgets.lines import Run

_TONES: dict[LogKind, str] = {"kernel": "kernel", "driver": "fail", "run": "event", "note": "quiet"}
_BEFORE = "before"
_MORE = "…"  # the line goes on to the right


class LogView(ScrollView, can_focus=True):
    """Rows of runs that follow the end unless scrolled up. Draws visible rows only; text is never parsed for markup."""

    DEFAULT_CSS = "LogView { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[tuple[Run, ...]] = []
        self._widest = 0
        self._follows = True

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows as text without styles."""
        return tuple("".join(text for text, _ in row) for row in self._rows)

    def replace(self, rows: Sequence[tuple[Run, ...]]) -> None:
        """Replace all rows and scroll to the end."""
        self._rows, self._widest = [], 0
        self._add(rows)
        self._follow()
        self.refresh()

    def append(self, rows: Sequence[tuple[Run, ...]], dropped: int = 0) -> None:
        """Drop the `dropped` oldest rows and add rows at the end, which stays visible if it was."""
        follows = self._follows
        del self._rows[:dropped]
        first = len(self._rows)
        self._add(rows)
        if dropped:
            # keep the visible rows in place
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
        # force: Textual adds the scroll bar, and so allows scrolling, only with the next layout
        self.scroll_end(animate=False, immediate=True, force=True, x_axis=False)

    def render_line(self, y: int) -> Strip:
        across, down = self.scroll_offset
        width = self.scrollable_content_region.width
        plain = self.rich_style
        if not 0 <= y + down < len(self._rows):
            return Strip.blank(width, plain)
        segments = [Segment(text, drawn_style(self, name)) for text, name in self._rows[y + down]]
        strip = Strip(segments)
        if strip.cell_length <= across + width:
            return strip.crop_extend(across, across + width, plain)
        return Strip.join([strip.crop_extend(across, across + width - 1, plain), Strip([Segment(_MORE, plain)])])

    def _add(self, rows: Sequence[tuple[Run, ...]]) -> None:
        self._rows += rows
        widths = [sum(cell_len(text) for text, _ in row) for row in rows]
        self._widest = max([self._widest, *widths])
        self.virtual_size = Size(self._widest, len(self._rows))


class LogPane(FilteredPane):
    """First the kernel lines of the facts, marked "before"; then events, the newest at the bottom."""

    DEFAULT_CSS = """
    LogPane { layout: vertical; height: 1fr; }
    LogPane #log-title { height: auto; }
    """
    BINDINGS = [
        Binding("f", "only_kernel", "Only kernel"),
        *FILTER_KEYS,
    ]

    def __init__(self) -> None:
        super().__init__()
        self._only_kernel = False
        self._drawn: list[LogLine] = []  # the lines of the state's log processed so far, filtered ones included
        self._before: tuple[str, ...] | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="log-title", markup=False)
        yield FilterLine()
        yield LogView()

    def action_only_kernel(self) -> None:
        """Toggle between kernel lines only and all lines."""
        self._only_kernel = not self._only_kernel
        self._draw_filtered()

    @property
    def _listed(self) -> LogView:
        return self.query_one(LogView)

    def _draw(self) -> None:
        """Append new lines; redraw all only if the log is another one or dropped lines were visible."""
        log = list(self._state.log)
        missing = _gone(self._drawn, log)
        if missing is None or self._earlier() != self._before:
            self._draw_filtered()
            return
        came = log[len(self._drawn) - missing :]
        if came:
            dropped = sum(self._wanted(line) for line in self._drawn[:missing])
            if dropped and self._before_rows():
                # the lines of the facts are above the dropped ones
                self._draw_filtered()
                return
            self._drawn = log
            self._listed.append([_row(line) for line in came if self._wanted(line)], dropped)
        self._draw_title()

    def _draw_filtered(self) -> None:
        self._drawn, self._before = list(self._state.log), self._earlier()
        self._listed.replace([*self._before_rows(), *(_row(line) for line in self._drawn if self._wanted(line))])
        self._draw_title()

    def _draw_title(self) -> None:
        shown, every = len(self._listed.rows), len(self._drawn) + len(self._before or ())
        parts = [f"Log: {every} lines" if every else "Log: nothing yet"]
        if self._only_kernel:
            parts.append("only the kernel's (f shows all)")
        if text := self.query_one(FilterLine).pattern:
            parts.append(f"filter {text!r} (Esc clears it)")
        if shown < every:
            parts.append(f"{shown} shown")
        node = self._state.node
        if node is not None and isinstance(node.kernel_log.events, Missing):
            parts.append(f"kernel log before: {node.kernel_log.events.reason}")
        elif node is not None and node.kernel_log.gap:
            parts.append(node.kernel_log.gap)
        put(self.query_one("#log-title", Static), Content.styled(printable("; ".join(parts)), "head"))

    def _earlier(self) -> tuple[str, ...]:
        """The kernel lines of the facts."""
        node = self._state.node
        if node is None or isinstance(node.kernel_log.events, Missing):
            return ()
        return tuple(event.text for event in node.kernel_log.events)

    def _before_rows(self) -> list[tuple[Run, ...]]:
        rows = [_runs(_BEFORE, "kernel", text) for text in self._before or ()]
        return [row for row in rows if self._matches("".join(text for text, _ in row))]

    def _wanted(self, line: LogLine) -> bool:
        if self._only_kernel and line.kind != "kernel":
            return False
        return self._matches("".join(text for text, _ in _row(line)))

    def _matches(self, text: str) -> bool:
        return self.query_one(FilterLine).pattern in text.lower()


def _gone(drawn: list[LogLine], log: list[LogLine]) -> int | None:
    """How many of the oldest drawn lines the log has dropped; None if it is another log.

    >>> a, b, c = (LogLine(0.0, "note", text) for text in "abc")
    >>> _gone([a, b], [a, b, c]), _gone([a, b], [b, c]), _gone([a], [b]), _gone([], [a])
    (0, 1, None, 0)
    """
    if not drawn:
        return 0
    if not log:
        return None
    missing = next((number for number, line in enumerate(drawn) if line is log[0]), None)
    if missing is None or len(drawn) - missing > len(log) or log[len(drawn) - missing - 1] is not drawn[-1]:
        return None
    return missing


def _row(line: LogLine) -> tuple[Run, ...]:
    return _runs(clock(line.at_s), line.kind, line.text)


def _runs(when: str, kind: LogKind, text: str) -> tuple[Run, ...]:
    return ((f"{when:<9}", "quiet"), (f"{kind:<7}", _TONES[kind]), (f" {printable(text)}", ""))
