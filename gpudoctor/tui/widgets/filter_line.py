"""The input line for a filter: `/` opens it, Esc clears and closes it, Enter keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from textual import on
from textual.binding import Binding
from textual.message import Message
from textual.widgets import Input


class FilterLine(Input):
    """A one-line Input, hidden until `open`; posts Filtered on every change."""

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
    def words(self) -> str:
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
        if not self.words:
            self._close()
        self.post_message(self.Filtered(done=True))

    def _close(self) -> None:
        self.remove_class("-open")
        self.can_focus = False
