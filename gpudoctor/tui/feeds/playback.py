"""A recorded stream as a source: play, pause, change speed, seek."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gpudoctor.errors import UserError
from gpudoctor.facts.stream.messages import Opening, Tick, WatchLine
from gpudoctor.tui.feeds import FeedFailure
from gpudoctor.tui.state import HISTORY_TICKS, Playback

if TYPE_CHECKING:
    from gpudoctor.facts.stream.recording import Recording

SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 60.0)
STEP_S = 10.0
LONGEST_GAP_S = 5.0  # a longer gap in the recording is shortened to this


class PlaybackFeed:
    """Ticks of a recording at their original pace times `playback.speed`.

    `playback` is the position that the screen shows; `pause`, `faster` and `seek` change it. After a seek,
    `before` returns what the state is rebuilt from. At its end the recording pauses.
    """

    def __init__(self, recording: Recording, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.label = label
        self.playback = Playback(recording.begin_s, recording.end_s, recording.begin_s)
        self._recording = recording
        self._clock = clock
        self._next = 0
        self._opened = -1
        self._changed = asyncio.Event()
        self._closed = False

    async def lines(self) -> AsyncIterator[WatchLine | FeedFailure]:
        """Yield the facts in force and each tick when it is due, until `close`; a FeedFailure for a broken line."""
        recording = self._recording
        due_s = self._clock()
        while not self._closed:
            if self._opened != self._opening_place():
                self._opened = self._opening_place()
                yield recording.opening_at(self._next)
            if self._next >= recording.count:
                self.playback.paused = True
            if self.playback.paused:
                await self._wait(None)
                due_s = self._clock() + self._gap_s()
                continue
            if await self._wait(due_s - self._clock()):
                due_s = self._clock() + self._gap_s()
                continue
            number, self._next = self._next, self._next + 1
            self.playback.at_s = recording.time_of(number)
            due_s = max(due_s, self._clock() - LONGEST_GAP_S) + self._gap_s()
            try:
                yield recording.tick(number)
            except UserError as error:
                yield FeedFailure(str(error), self.playback.at_s)

    def pause(self) -> None:
        """Pause or resume; at the end, start again."""
        if self.playback.paused and self._next >= self._recording.count:
            self._next = 0
        self.playback.paused = not self.playback.paused
        self._changed.set()

    def faster(self, steps: int) -> None:
        """Move `steps` up (negative: down) in `SPEEDS`."""
        place = SPEEDS.index(self.playback.speed) + steps
        self.playback.speed = SPEEDS[min(max(place, 0), len(SPEEDS) - 1)]
        self._changed.set()

    def seek(self, at_s: float) -> None:
        """Move to the last tick at or before this Unix time."""
        recording = self._recording
        number = recording.number_at(min(max(at_s, recording.begin_s), recording.end_s))
        if recording.count:
            self.playback.at_s = recording.time_of(number)
            self._next = number + 1
        self._changed.set()

    def before(self) -> tuple[Opening, list[Tick]]:
        """The facts in force now and the ticks that the history is built from, without broken ones."""
        ticks = []
        for number in range(max(0, self._next - HISTORY_TICKS), self._next):
            with suppress(UserError):
                ticks.append(self._recording.tick(number))
        self._opened = self._opening_place()
        return self._recording.opening_at(self._next), ticks

    def close(self) -> None:
        self._closed = True
        self._changed.set()
        self._recording.close()

    def _opening_place(self) -> int:
        return max(0, bisect_right(self._recording.openings, self._next) - 1)

    def _gap_s(self) -> float:
        """Seconds until the next tick."""
        if self._next >= self._recording.count:
            return 0.0
        gap_s = self._recording.time_of(self._next) - self.playback.at_s
        return min(max(gap_s, 0.0), LONGEST_GAP_S) / self.playback.speed

    async def _wait(self, seconds: float | None) -> bool:
        """Wait; whether the controls were used meanwhile."""
        try:
            await asyncio.wait_for(self._changed.wait(), None if seconds is None else max(seconds, 0.0))
        except asyncio.TimeoutError:
            return False
        self._changed.clear()
        return True
