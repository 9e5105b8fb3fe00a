"""What every pane of the screen is: something that draws the state when it is told to."""

from __future__ import annotations

from textual.widget import Widget

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
