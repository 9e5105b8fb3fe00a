"""What every pane of the screen is: something that draws the state when it is told to."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from textual import on
from textual.binding import Binding
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from gpudoctor.tui.state import State
from gpudoctor.tui.widgets.filter_line import FilterLine
from gpudoctor.tui.widgets.lines import Lines


class Pane(Widget):
    """One tab's content. `show` is called with the state after each change, only while the pane is to be seen.

    It draws and returns; it never reads, waits or starts anything. What the user wants done goes
    up as a message or an action of the App.
    """

    def show(self, state: State) -> None:
        raise NotImplementedError


class DrawnPane(Pane):
    """A pane that keeps the state, and draws itself from it."""

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


FILTER_KEYS = (
    Binding("slash", "filter", "Filter", key_display="/"),
    Binding("escape", "drop_filter", "Clear filter", show=False),
)


class FilteredPane(DrawnPane):
    """A drawn pane with a line in which a filter is typed, and `FILTER_KEYS` among its own keys."""

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
        """What is filtered."""
        raise NotImplementedError

    def _draw_filtered(self) -> None:
        """Draw it with another filter."""
        self._draw()


class DrawnLines(Lines):
    """Rows that are drawn from the state: after each change of it, and when there is more room or less."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._state: State | None = None

    def show(self, state: State) -> None:
        self._state = state
        self.on_resize()

    def on_resize(self) -> None:
        width, height = self.size
        if self._state is not None and width and height:
            self._draw(self._state, width, height)

    def _draw(self, state: State, width: int, height: int) -> None:
        raise NotImplementedError


# Drawing only what has changed: an update of a Static costs its layout, even with the same text.


def put(place: Static, content: Content) -> None:
    """Show `content` in `place`, unless it stands there already with the same styles."""
    shown = place.content
    if not (isinstance(shown, Content) and shown.is_same(content)):
        place.update(content)


# The tabs in their order, and the pane of each.

TABS = (
    ("overview", "Overview"),
    ("checks", "Checks"),
    ("links", "Links"),
    ("ranks", "Ranks"),
    ("processes", "Processes"),
    ("log", "Log"),
)


def pane_class(tab: str) -> type[Pane]:
    """The class of a tab's pane, by the tab's id."""
    # imported when first turned to: the screen stands sooner
    module = import_module(f"gpudoctor.tui.panes.{tab}")
    return cast(type[Pane], getattr(module, f"{tab.capitalize()}Pane"))
