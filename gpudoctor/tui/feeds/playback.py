"""A recorded stream as a source: it plays, pauses, goes faster and slower, and turns to any moment."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gpudoctor.errors import UserError
from gpudoctor.facts.stream.messages import Opening, Tick, WatchLine
from gpudoctor.tui.feeds.feed import FeedFailure
from gpudoctor.tui.state import HISTORY_TICKS, Playback

if TYPE_CHECKING:
    from gpudoctor.facts.stream.recording import Recording

SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 60.0)
STEP_S = 10.0
LONGEST_GAP_S = 5.0  # a night in which nothing was written is passed over


class PlaybackFeed:
    """Ticks of a recording at the pace they were written in, times `playback.speed`.

    `playback` is what the screen shows of it; `pause`, `faster` and `seek` change it. After a seek
    `before` gives what the state is to be built of. At the end it stays, paused.
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
        """Yield the facts that hold, and each tick in its time, until `close`. A broken line is a Trouble."""
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
        """Stop or go on; at the end, begin again."""
        if self.playback.paused and self._next >= self._recording.count:
            self._next = 0
        self.playback.paused = not self.playback.paused
        self._changed.set()

    def faster(self, steps: int) -> None:
        """So many steps up (or down) in `SPEEDS`."""
        place = SPEEDS.index(self.playback.speed) + steps
        self.playback.speed = SPEEDS[min(max(place, 0), len(SPEEDS) - 1)]
        self._changed.set()

    def seek(self, at_s: float) -> None:
        """Turn to the last tick at or before this Unix time."""
        recording = self._recording
        number = recording.number_at(min(max(at_s, recording.begin_s), recording.end_s))
        if recording.count:
            self.playback.at_s = recording.time_of(number)
            self._next = number + 1
        self._changed.set()

    def before(self) -> tuple[Opening, list[Tick]]:
        """The facts that hold at this moment and the ticks that a history is built of; broken ones are left out."""
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
        """Whether the controls were used meanwhile."""
        try:
            await asyncio.wait_for(self._changed.wait(), None if seconds is None else max(seconds, 0.0))
        except asyncio.TimeoutError:
            return False
        self._changed.clear()
        return True
