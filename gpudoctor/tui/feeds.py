"""Where the screen gets its lines: `gpudoctor watch` as a child process, local or over ssh, or a recorded stream."""

from __future__ import annotations

import asyncio
import signal
import time
from bisect import bisect_right
from collections.abc import AsyncIterator
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.facts.deadlines import COLLECTION
from gpudoctor.facts.stream.messages import Opening, Tick, WatchLine
from gpudoctor.process.async_child import AsyncChild
from gpudoctor.text.output import printable
from gpudoctor.tui.state import HISTORY_TICKS, FeedFailure, Playback

if TYPE_CHECKING:
    from gpudoctor.facts.stream.recording import Recording

LINE_BYTES_MAX = 16 << 20
FIRST_LINE_S = COLLECTION.seconds + 35.0  # the facts are read first; ssh may need time to connect
SILENT_S, SILENT_INTERVALS = 5.0, 3.0
KILL_AFTER_S = 1.0
LONGEST_PAUSE_S = 60.0
# after ctrl-z and fg the deadline has passed although lines are waiting in the pipe
_SECOND_LOOK_S = 0.25
_ENDING_S = 0.5
SPEEDS = (0.5, 1.0, 2.0, 5.0, 10.0, 60.0)
STEP_S = 10.0
LONGEST_GAP_S = 5.0  # a longer gap in the recording is shortened to this


class Feed(Protocol):
    """A source of lines. `lines` yields until `close`, also after failures; `close` never waits."""

    label: str

    def lines(self) -> AsyncIterator[WatchLine | FeedFailure]: ...

    def close(self) -> None: ...


class ChildFeed:
    """Lines of a child that writes `gpudoctor.watch/1`.

    If it cannot be started, ends, writes anything else or falls silent, it is killed, a `FeedFailure` gives
    the reason, and another child is started after 1, 2, 4 ... 60 s. A tick resets the pause to 1 s.
    """

    def __init__(self, command: list[str], label: str) -> None:
        self.label = label
        self._command = command
        self._decode = msgspec.json.Decoder(WatchLine).decode
        self._child: _Child | None = None
        self._closed = asyncio.Event()

    async def lines(self) -> AsyncIterator[WatchLine | FeedFailure]:
        """Yield lines and failures until `close`."""
        pause_s = 1.0
        while not self._closed.is_set():
            why = "ended"
            try:
                self._child = child = _Child(self._command)
                await child.open()
                limit_s = FIRST_LINE_S
                while not self._closed.is_set():
                    line = await child.line(limit_s)
                    if isinstance(line, str):
                        why = line
                        break
                    try:
                        came: WatchLine = self._decode(line)
                    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                        why = _nonsense(line, error)
                        break
                    if isinstance(came, Opening):
                        limit_s = max(SILENT_S, SILENT_INTERVALS * came.interval_s)
                    else:
                        pause_s = 1.0
                    yield came
                    await asyncio.sleep(0)  # let the app handle keys while many lines are waiting
                else:
                    return
                text = await child.stderr_tail()
                why = f"{why}: {text}" if text else why
            except OSError as error:
                why = f"{self._command[0]}: {error.strerror or error}"
            finally:
                if self._child is not None:
                    self._child.end_soon()
            if self._closed.is_set():
                return
            yield FeedFailure(f"{self.label}: {why}; trying again in {pause_s:.0f} s", time.time())
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        """End the child without waiting: by SIGTERM on the first call, by SIGKILL on the second."""
        if self._child is not None:
            self._child.end_soon(now=self._closed.is_set())
        self._closed.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)


class _Child(AsyncChild):
    """One watch process with its two pipes."""

    def __init__(self, command: list[str]) -> None:
        super().__init__(command)
        self._unread = asyncio.StreamReader(limit=LINE_BYTES_MAX)

    async def open(self) -> None:
        await self.read_into(asyncio.StreamReaderProtocol(self._unread))

    async def line(self, limit_s: float) -> bytes | str:
        """The next line as bytes, or as str the reason why there is none."""
        for seconds in (limit_s, _SECOND_LOOK_S):
            try:
                line = await asyncio.wait_for(self._unread.readline(), seconds)
            except asyncio.TimeoutError:
                continue
            except ValueError:
                return f"wrote a line longer than {LINE_BYTES_MAX >> 20} MiB"
            # a line without its end is truncated and must not be used
            return line if line.endswith(b"\n") else await self._ending()
        return f"said nothing for {limit_s:.0f} s"

    async def _ending(self) -> str:
        # its output ends a moment before the process does
        code = await self.exit_status(_ENDING_S)
        if code is None:
            return "closed its output"
        return f"ended (exit code {code})" if code >= 0 else f"was killed by signal {-code}"

    async def stderr_tail(self) -> str:
        """The last line on stderr, which may arrive after the end of stdout."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.stderr_ended.wait(), 0.1)
        return printable(self.last_message())[:200]

    def end_soon(self, *, now: bool = False) -> None:
        """End the process group without waiting: by SIGTERM and SIGKILL a second later; `now`: SIGKILL at once."""
        self.stop_reading()
        if now:
            self.kill_now()
        elif self.poll() is None:
            self.send(signal.SIGTERM, group=True)
            self.send_later(KILL_AFTER_S, signal.SIGKILL, group=True)


def _nonsense(line: bytes, error: Exception) -> str:
    reported = printable(line[:60].decode("utf-8", "replace").strip())
    return f"wrote what is no line of gpudoctor watch ({' '.join(str(error).split())[:80]}): {reported}"


class PlaybackFeed:
    """Ticks of a recording at their original pace times `playback.speed`.

    `playback` is the position that the screen shows; `pause`, `faster` and `seek` change it. After a seek,
    `before` returns what the state is rebuilt from. At its end the recording pauses.
    """

    def __init__(self, recording: Recording, label: str) -> None:
        self.label = label
        self.playback = Playback(recording.begin_s, recording.end_s, recording.begin_s)
        self._recording = recording
        self._next = 0
        self._opened = -1
        self._changed = asyncio.Event()
        self._closed = False

    async def lines(self) -> AsyncIterator[WatchLine | FeedFailure]:
        """Yield the facts in force and each tick when it is due, until `close`; a FeedFailure for a broken line."""
        recording = self._recording
        due_s = monotonic()
        while not self._closed:
            if self._opened != self._opening_place():
                self._opened = self._opening_place()
                yield recording.opening_at(self._next)
            if self._next >= recording.count:
                self.playback.paused = True
            if self.playback.paused:
                await self._wait(None)
                due_s = monotonic() + self._gap_s()
                continue
            if await self._wait(due_s - monotonic()):
                due_s = monotonic() + self._gap_s()
                continue
            number, self._next = self._next, self._next + 1
            self.playback.at_s = recording.time_of(number)
            due_s = max(due_s, monotonic() - LONGEST_GAP_S) + self._gap_s()
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
        index = SPEEDS.index(self.playback.speed) + steps
        self.playback.speed = SPEEDS[min(max(index, 0), len(SPEEDS) - 1)]
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
