"""What a check found: found, expected, evidence, likely, do, explains, and since when."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gpudoctor.tui.messages import PageWanted
from gpudoctor.tui.panes.finding_text import finding_content
from gpudoctor.tui.state import State


class FindingPane(VerticalScroll, can_focus=True):
    """Draws the findings of one check when told to; it scrolls, and goes back to the top for another check."""

    DEFAULT_CSS = """
    FindingPane {
        height: 1fr;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        & > Static { height: auto; width: 100%; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("enter,e", "page", "Explain")]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._text = Static(id="finding-text")
        self._state: State | None = None
        self._check_id: str | None = None
        self._gpu: int | None = None
        self._drawn: object = None

    def compose(self) -> ComposeResult:
        yield self._text

    def show_finding(self, state: State, check_id: str | None, gpu: int | None = None) -> None:
        """Draw all findings of the check, those of `gpu` (NVML index) first; None clears the pane."""
        if (check_id, gpu) != (self._check_id, self._gpu):
            self.scroll_home(animate=False)
        self._state, self._check_id, self._gpu = state, check_id, gpu
        self._draw()

    def _draw(self) -> None:
        if self._state is None:
            return
        # the scrollbar's column is always kept free: else lines would break anew when it comes
        width = self.scrollable_content_region.width
        no_color = self.app.no_color
        key = (id(self._state.report), len(self._state.runs), self._check_id, self._gpu, width, no_color)
        if key == self._drawn or width < 1:
            return
        self._drawn = key
        if self._check_id is None:
            self._text.update(Content("No check is chosen: its findings come here."))
        else:
            self._text.update(finding_content(self._state, self._check_id, self._gpu, width, no_color))

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def action_page(self) -> None:
        if self._check_id is not None:
            self.post_message(PageWanted(self._check_id))
