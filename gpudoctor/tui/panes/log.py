"""The Log tab: kernel lines and gpudoctor's own events as they come."""

from __future__ import annotations

import time

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Static

from gpudoctor.exits import printable
from gpudoctor.facts.model.missing import Missing
from gpudoctor.tui.panes.pane import DrawnPane, put
from gpudoctor.tui.state import LogLine
from gpudoctor.tui.widgets.filter_line import FilterLine
from gpudoctor.tui.widgets.log_view import LogView, Run
from gpudoctor.tui.widgets.status_style import style_of

_BEFORE = "before"


class LogPane(DrawnPane):
    """First the kernel's lines that the facts held already, marked "before"; then events, the newest at the bottom."""

    DEFAULT_CSS = """
    LogPane { layout: vertical; height: 1fr; }
    LogPane #log-title { height: auto; }
    """
    BINDINGS = [
        Binding("f", "only_kernel", "Only kernel"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "drop_filter", "Clear filter", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._only_kernel = False
        self._drawn: list[LogLine] = []  # of the state's log, as far as it was looked at
        self._before: tuple[str, ...] | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="log-title", markup=False)
        yield FilterLine()
        yield LogView()

    def action_only_kernel(self) -> None:
        """Show only the kernel's lines, or all again."""
        self._only_kernel = not self._only_kernel
        self._draw_anew()

    def action_filter(self) -> None:
        self.query_one(FilterLine).open()

    def action_drop_filter(self) -> None:
        self.query_one(FilterLine).drop()

    @on(FilterLine.Filtered)
    def _filtered(self, event: FilterLine.Filtered) -> None:
        event.stop()
        if event.done:
            self._view.focus()
        self._draw_anew()

    @property
    def _view(self) -> LogView:
        return self.query_one(LogView)

    def _draw(self) -> None:
        """Add what has come since; draw anew only where lines went or are others."""
        log = list(self._state.log)
        gone = _gone(self._drawn, log)
        if gone is None or self._earlier() != self._before:
            self._draw_anew()
            return
        came = log[len(self._drawn) - gone :]
        if came:
            dropped = sum(self._wanted(line) for line in self._drawn[:gone])
            if dropped and self._before_rows():
                # the facts' lines stand above those that went
                self._draw_anew()
                return
            self._drawn = log
            self._view.append([_row(line) for line in came if self._wanted(line)], dropped)
        self._draw_title()

    def _draw_anew(self) -> None:
        self._drawn, self._before = list(self._state.log), self._earlier()
        self._view.replace([*self._before_rows(), *(_row(line) for line in self._drawn if self._wanted(line))])
        self._draw_title()

    def _draw_title(self) -> None:
        shown, every = len(self._view.rows), len(self._drawn) + len(self._before or ())
        parts = [f"Log: {every} lines" if every else "Log: nothing yet"]
        if self._only_kernel:
            parts.append("only the kernel's (f shows all)")
        if words := self.query_one(FilterLine).words:
            parts.append(f"filter {words!r} (Esc clears it)")
        if shown < every:
            parts.append(f"{shown} shown")
        node = self._state.node
        if node is not None and isinstance(node.kernel_log.events, Missing):
            parts.append(f"kernel log before: {node.kernel_log.events.reason}")
        elif node is not None and node.kernel_log.gap:
            parts.append(node.kernel_log.gap)
        put(
            self.query_one("#log-title", Static),
            Content.styled(printable("; ".join(parts)), style_of("head", self.app.no_color)),
        )

    def _earlier(self) -> tuple[str, ...]:
        """The lines that the facts held."""
        node = self._state.node
        if node is None or isinstance(node.kernel_log.events, Missing):
            return ()
        return tuple(event.text for event in node.kernel_log.events)

    def _before_rows(self) -> list[tuple[Run, ...]]:
        rows = [_runs(_BEFORE, "kernel", text) for text in self._before or ()]
        return [row for row in rows if self._has_words("".join(text for text, _ in row))]

    def _wanted(self, line: LogLine) -> bool:
        if self._only_kernel and line.kind != "kernel":
            return False
        return self._has_words("".join(text for text, _ in _row(line)))

    def _has_words(self, text: str) -> bool:
        return self.query_one(FilterLine).words in text.lower()


def _gone(drawn: list[LogLine], log: list[LogLine]) -> int | None:
    """How many of the oldest drawn lines the log no longer has; None where it is another log.

    >>> a, b, c = (LogLine(0.0, "note", text) for text in "abc")
    >>> _gone([a, b], [a, b, c]), _gone([a, b], [b, c]), _gone([a], [b]), _gone([], [a])
    (0, 1, None, 0)
    """
    if not drawn:
        return 0
    if not log:
        return None
    gone = next((place for place, line in enumerate(drawn) if line is log[0]), None)
    if gone is None or len(drawn) - gone > len(log) or log[len(drawn) - gone - 1] is not drawn[-1]:
        return None
    return gone


def _row(line: LogLine) -> tuple[Run, ...]:
    return _runs(time.strftime("%H:%M:%S", time.localtime(line.at_s)), line.kind, line.text)


def _runs(when: str, kind: str, text: str) -> tuple[Run, ...]:
    return ((f"{when:<9}", "log--time"), (f"{kind:<7}", f"log--{kind}"), (f" {printable(text)}", ""))
