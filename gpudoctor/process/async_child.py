"""A child process whose pipes are read by an asyncio event loop.

asyncio's own subprocesses cannot be used: their watcher waits for the child, and a child stuck in a driver call never
ends.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from gpudoctor.process.pipes import LineReader
from gpudoctor.process.spawn import DEVNULL, PIPE, Child

_POLL_S = 0.02
_LINE_BYTES_MAX = 1 << 16
_DEATH_S = 0.05  # how long to wait for a killed process: the event loop, and so the screen, is blocked meanwhile
_REST_S = 1.0  # how long to read on after its end: its last output is already in the pipes


class AsyncChild(Child):
    """A child with pipes from its standard output and error. Raise OSError if it cannot be started.

    Of its standard error the last line that is not blank is kept. `is_message` is called with each line: one for which
    it returns False is not for people.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: int = DEVNULL,
        env: Mapping[str, str] | None = None,
        is_message: Callable[[bytes], bool] = bool,
    ) -> None:
        super().__init__(argv, stdin=stdin, stdout=PIPE, stderr=PIPE, env=env)
        self.stderr_ended = asyncio.Event()
        self._is_message = is_message
        self._last_message = ""
        self._lines = LineReader(self.stderr, _LINE_BYTES_MAX, cut=True)
        self._transports: list[asyncio.BaseTransport] = []
        self._timers: list[asyncio.TimerHandle] = []

    async def read_into(self, out: asyncio.BaseProtocol) -> None:
        """Have the running loop read both pipes from now on."""
        err = Taker(self._take_lines, self.stderr_ended.set)
        for protocol, pipe in ((out, self._process.stdout), (err, self._process.stderr)):
            await self._connect(asyncio.get_running_loop().connect_read_pipe, protocol, pipe)

    async def hear(self, out: Callable[[bytes], None]) -> None:
        """Pass the output to `out` until the child has ended and its pipes are read.

        Does not wait for the end of the pipes: processes that the child started may keep them open.
        """
        stdout_ended = asyncio.Event()
        await self.read_into(Taker(out, stdout_ended.set))
        await self.exit_status()
        for ended in (stdout_ended, self.stderr_ended):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), _REST_S)

    def last_message(self) -> str:
        """The last line on its standard error, even if it has no end; empty if there is none."""
        self._take_lines(b"\n")
        return self._last_message

    def _take_lines(self, data: bytes) -> None:
        for line in self._lines.split(data):
            if line.strip() and self._is_message(line):
                self._last_message = line.decode("utf-8", "replace").strip()

    async def writer(self) -> asyncio.StreamWriter:
        """A writer to its standard input."""
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        transport = await self._connect(loop.connect_write_pipe, protocol, self._process.stdin)
        return asyncio.StreamWriter(transport, protocol, None, loop)

    async def exit_status(self, limit_s: float | None = None) -> int | None:
        """The exit status, -n for signal n; None if it is still running after the limit."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while (status := self.poll()) is None:
            if limit_s is not None and loop.time() - began_s >= limit_s:
                return None
            await asyncio.sleep(_POLL_S)
        return status

    def send_later(self, delay_s: float, number: int, *, group: bool = False) -> None:
        """Send a signal after a delay unless it has ended by then; does nothing without a running loop."""
        with suppress(RuntimeError):
            timer = asyncio.get_running_loop().call_later(delay_s, lambda: self._send_and_reap(number, group))
            self._timers.append(timer)

    def kill_now(self) -> None:
        """Kill its process group; does not wait for a process that is stuck in the driver."""
        if self.poll() is None:
            self._send_and_reap(signal.SIGKILL, group=True)

    def stop_reading(self) -> None:
        """Close the pipes."""
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    def cancel_timers(self) -> None:
        """Cancel all signals of `send_later`."""
        for timer in self._timers:
            timer.cancel()

    def _send_and_reap(self, number: int, group: bool) -> None:
        self.send(number, group=group)
        self.ends_within(_DEATH_S if number == signal.SIGKILL else 0.0)

    async def _connect(
        self, connect: Callable[..., Any], protocol: asyncio.BaseProtocol, pipe: IO[bytes] | None
    ) -> Any:
        transport, _ = await connect(lambda: protocol, pipe)
        self._transports.append(transport)
        return transport


class Taker(asyncio.Protocol):
    """Passes on the data of a pipe, and its end."""

    def __init__(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._take, self._ended = take, ended

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
