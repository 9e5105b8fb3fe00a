"""The live source: `gpudoctor watch` as a child process, here or over ssh, kept going whatever happens to it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import msgspec

from gpudoctor.exits import printable
from gpudoctor.facts.deadlines import COLLECTION
from gpudoctor.facts.stream.messages import Opening, WatchLine
from gpudoctor.tui.feeds.feed import Trouble

LINE_BYTES_MAX = 16 << 20
FIRST_LINE_S = COLLECTION.seconds + 35.0  # the facts are read first; ssh may take its time too
SILENT_S, SILENT_INTERVALS = 5.0, 3.0
KILL_AFTER_S = 1.0
LONGEST_PAUSE_S = 60.0
# a stopped and continued screen (ctrl-z) finds its deadline passed and the lines waiting
_SECOND_LOOK_S = 0.25
_POLLS, _POLL_S = 25, 0.02


class ChildFeed:
    """Lines of a child that writes `gpudoctor.watch/1`.

    Where it cannot be started, ends, talks nonsense or falls silent, a `Trouble` says why, it is
    killed, and another one is started after 1, 2, 4 ... 60 s; one that gave a tick begins at 1 again.
    """

    def __init__(self, command: list[str], label: str, clock: Callable[[], float] = time.time) -> None:
        self.label = label
        self._command = command
        self._clock = clock
        self._decode = msgspec.json.Decoder(WatchLine).decode
        self._child: _Child | None = None
        self._closed = asyncio.Event()

    async def lines(self) -> AsyncIterator[WatchLine | Trouble]:
        """Yield lines and troubles until `close`."""
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
                    await asyncio.sleep(0)  # lines that wait already must not keep the screen from its keys
                else:
                    return
                words = await child.last_words()
                why = f"{why}: {words}" if words else why
            except OSError as error:
                why = f"{self._command[0]}: {error.strerror or error}"
            finally:
                if self._child is not None:
                    self._child.end()
            if self._closed.is_set():
                return
            yield Trouble(f"{self.label}: {why}; trying again in {pause_s:.0f} s", self._clock())
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        """End the child without waiting: the first call asks it to (SIGTERM), a second one does not ask (SIGKILL)."""
        if self._child is not None:
            self._child.end(now=self._closed.is_set())
        self._closed.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)


class _Child:
    """One process with its two pipes. Its own session: what the terminal sends is not for it."""

    def __init__(self, command: list[str]) -> None:
        # not asyncio's subprocess: its watcher waits for the child, and a hung driver call does not end
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._transports: list[asyncio.BaseTransport] = []
        self._last_words = b""
        self._heard = asyncio.Event()
        self._lines = asyncio.StreamReader(limit=LINE_BYTES_MAX)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        out, err = self._process.stdout, self._process.stderr
        protocol = asyncio.StreamReaderProtocol(self._lines)
        transport, _ = await loop.connect_read_pipe(lambda: protocol, out)
        self._transports.append(transport)
        transport, _ = await loop.connect_read_pipe(lambda: _LastLine(self._say, self._heard.set), err)
        self._transports.append(transport)

    def _say(self, line: bytes) -> None:
        self._last_words = line

    async def line(self, limit_s: float) -> bytes | str:
        """The next line; in words why there is none."""
        for seconds in (limit_s, _SECOND_LOOK_S):
            try:
                line = await asyncio.wait_for(self._lines.readline(), seconds)
            except asyncio.TimeoutError:
                continue
            except ValueError:
                return f"wrote a line longer than {LINE_BYTES_MAX >> 20} MiB"
            # without its end a line is cut off, and what is cut off is not to be trusted
            return line if line.endswith(b"\n") else await self._ending()
        return f"said nothing for {limit_s:.0f} s"

    async def _ending(self) -> str:
        # the end of its output is seen a moment before its own
        code = self._process.poll()
        for _ in range(_POLLS):
            if code is not None:
                break
            await asyncio.sleep(_POLL_S)
            code = self._process.poll()
        if code is None:
            return "closed its output"
        return f"ended (exit code {code})" if code >= 0 else f"was killed by signal {-code}"

    async def last_words(self) -> str:
        """The last line that it wrote to stderr; what it said last may come after its output ended."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._heard.wait(), 0.1)
        return printable(self._last_words.decode("utf-8", "replace").strip())[:200]

    def end(self, *, now: bool = False) -> None:
        for transport in self._transports:
            transport.close()
        self._transports.clear()
        if not self._signal(signal.SIGKILL if now else signal.SIGTERM):
            return
        if now:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)  # one that is stuck in the driver is left to the kernel
            return
        with suppress(RuntimeError):
            asyncio.get_running_loop().call_later(KILL_AFTER_S, self._kill)

    def _kill(self) -> None:
        if self._signal(signal.SIGKILL):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)

    def _signal(self, number: signal.Signals) -> bool:
        """Send it to the whole group; False where the child is gone."""
        if self._process.poll() is not None:
            return False
        with suppress(OSError):
            os.killpg(self._process.pid, number)
        return True


class _LastLine(asyncio.Protocol):
    """Keeps nothing but the last line."""

    def __init__(self, say: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._say = say
        self._ended = ended
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        lines = [line for line in (self._rest + data).split(b"\n") if line.strip()]
        self._rest = (self._rest + data).rpartition(b"\n")[2][-4096:]
        if lines:
            self._say(lines[-1][-4096:])

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()


def _nonsense(line: bytes, error: Exception) -> str:
    said = printable(line[:60].decode("utf-8", "replace").strip())
    return f"wrote what is no line of gpudoctor watch ({' '.join(str(error).split())[:80]}): {said}"
