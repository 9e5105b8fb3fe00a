"""Where a recording is: a line to click on, with the keys that move it."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.message import Message

from gpudoctor.tui.labels import clock
from gpudoctor.tui.state import State
from gpudoctor.tui.widgets.lines import Lines, row


@dataclass
class Sought(Message):
    """The user wants this moment (Unix time)."""

    at_s: float


class TimeSlider(Lines):
    """Shown while a recording plays; a click turns to the time under it."""

    def __init__(self) -> None:
        super().__init__()
        self._line = (0, 0)
        self._times = (0.0, 0.0)

    def show(self, state: State) -> None:
        playback = state.playback
        self.set_class(playback is not None, "-shown")
        if playback is None or not self.size.width:
            return
        sign = "paused " if playback.paused else "playing"
        left = f" {sign} {clock(playback.at_s)} "
        right = f" {clock(playback.end_s)}  x{playback.speed:g}  space -/+ left/right "
        if self.size.width < 70:
            right = f" x{playback.speed:g} "
        width = max(1, self.size.width - len(left) - len(right))
        length_s = playback.end_s - playback.begin_s
        share = (playback.at_s - playback.begin_s) / length_s if length_s > 0 else 1.0
        place = round(share * (width - 1))
        self._line, self._times = (len(left), width), (playback.begin_s, playback.end_s)
        done, rest = "━" * place, "─" * (width - 1 - place)
        self.show_rows([row((left, "strong"), (done, "bar"), ("█", "strong"), (rest, "rest"), (right, "dim"))])

    def on_click(self, event: events.Click) -> None:
        start, width = self._line
        if width > 1 and start <= event.x < start + width:
            begin_s, end_s = self._times
            self.post_message(Sought(begin_s + (end_s - begin_s) * (event.x - start) / (width - 1)))
