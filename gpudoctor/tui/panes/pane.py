"""Base classes of the panes, what they ask of the App, and the list of tabs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import cast

from textual import on
from textual.binding import Binding
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from gpudoctor.checks.core.registry import Level
from gpudoctor.tui.labels import in_styles
from gpudoctor.tui.state import State
from gpudoctor.tui.widgets.lines import Lines

FILTER_KEYS = (
    Binding("slash", "filter", "Filter", key_display="/"),
    Binding("escape", "drop_filter", "Clear filter", show=False),
)
TABS = (
    ("overview", "Overview"),
    ("checks", "Checks"),
    ("links", "Links"),
    ("ranks", "Ranks"),
    ("processes", "Processes"),
    ("log", "Log"),
)


@dataclass
class RunWanted(Message):
    """Run these checks (ids or domains; empty: all) at a level."""

    only: tuple[str, ...]
    level: Level


@dataclass
class PageWanted(Message):
    """Show the page of this check."""

    check_id: str


@dataclass
class GpuChosen(Message):
    """The user selected this GPU (NVML index)."""

    index: int


class Pane(Widget):
    """The content of one tab. The App calls `show` after each change of the state while the pane is visible.

    `show` only draws; it never reads, waits or starts anything. Requests of the user are the messages above
    or actions of the App, which alone acts on them.
    """

    def show(self, state: State) -> None:
        raise NotImplementedError


class DrawnPane(Pane):
    """A pane that keeps the state and draws itself from it."""

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def show(self, state: State) -> None:
        self._state = state
        if self.is_mounted:
            self._draw()

    def on_mount(self) -> None:
        self._draw()

    def _draw(self) -> None:
        raise NotImplementedError


class FilterLine(Input):
    """The line for a filter, hidden until `open`: Esc clears and closes it, Enter keeps it."""

    DEFAULT_CSS = """
    FilterLine { display: none; height: 1; border: none; padding: 0; }
    FilterLine.-open { display: block; }
    FilterLine:focus { border: none; }
    """
    BINDINGS = [Binding("escape", "drop", "Clear filter")]

    @dataclass
    class Filtered(Message):
        """The filter changed; `done`: the focus should return to the filtered widget."""

        done: bool

    def __init__(self) -> None:
        super().__init__(placeholder="filter: a part of any column", compact=True)
        self.can_focus = False  # while hidden

    @property
    def pattern(self) -> str:
        return self.value.strip().lower()

    def open(self) -> None:
        self.can_focus = True
        self.add_class("-open")
        self.focus()

    def action_drop(self) -> None:
        """Clear the filter and close the line."""
        self.value = ""
        self._close()
        self.post_message(self.Filtered(done=True))

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Filtered(done=False))

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        if not self.pattern:
            self._close()
        self.post_message(self.Filtered(done=True))

    def _close(self) -> None:
        self.remove_class("-open")
        self.can_focus = False


class FilteredPane(DrawnPane):
    """A drawn pane with a FilterLine and `FILTER_KEYS` among its bindings."""

    def action_filter(self) -> None:
        self.query_one(FilterLine).open()

    def action_drop_filter(self) -> None:
        self.query_one(FilterLine).action_drop()

    @on(FilterLine.Filtered)
    def _filtered(self, event: FilterLine.Filtered) -> None:
        event.stop()
        if event.done:
            self._listed.focus()
        self._draw_filtered()

    @property
    def _listed(self) -> Widget:
        """The filtered widget."""
        raise NotImplementedError

    def _draw_filtered(self) -> None:
        """Draw with another filter."""
        self._draw()


class DrawnLines(Lines):
    """Rows drawn from the state: after each change of the state and of the size."""

    _state: State | None = None

    def show(self, state: State) -> None:
        self._state = state
        self.on_resize()

    def on_resize(self) -> None:
        width, height = self.size
        if self._state is not None and width and height:
            self._draw(self._state, width, height)

    def _draw(self, state: State, width: int, height: int) -> None:
        raise NotImplementedError


def put(text: Static, content: Content) -> None:
    """Paint the tones of a content and show it, if it differs: each update costs a layout, even with the same text."""
    shown, content = text.content, in_styles(content, text.app.no_color)
    if not (isinstance(shown, Content) and shown.is_same(content)):
        text.update(content)


def pane_class(tab: str) -> type[Pane]:
    """The class of a tab's pane, by the tab's id."""
    # imported when first shown, so that the screen starts faster
    module = import_module(f"gpudoctor.tui.panes.{tab}")
    return cast(type[Pane], getattr(module, f"{tab.capitalize()}Pane"))
