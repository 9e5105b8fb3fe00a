"""What every pane of the screen is: something that draws the state when it is told to."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from gpudoctor.tui.state import State


class Pane(Widget):
    """One tab's content. `show` is called with the state after each change, only while the pane is to be seen.

    It draws and returns; it never reads, waits or starts anything. What the user wants done goes
    up as a message or an action of the App.
    """

    def show(self, state: State) -> None:
        raise NotImplementedError


class DrawnPane(Pane):
    """A pane that keeps the state, and draws itself from it."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._state = State()

    def show(self, state: State) -> None:
        self._state = state
        if self.is_mounted:
            self._draw()

    def on_mount(self) -> None:
        self._draw()

    def _draw(self) -> None:
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
