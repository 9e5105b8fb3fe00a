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

from gpudoctor.process.spawn import DEVNULL, PIPE, Child

_POLL_S = 0.02
_DEATH_S = 0.05  # how long to wait for a killed process: the event loop, and so the screen, is blocked meanwhile
_REST_S = 1.0  # how long to read on after its end: its last output is already in the pipes


class AsyncChild(Child):
    """A child with pipes from its standard output and error. Raise OSError if it cannot be started."""

    def __init__(self, argv: Sequence[str], *, stdin: int = DEVNULL, env: Mapping[str, str] | None = None) -> None:
        super().__init__(argv, stdin=stdin, stdout=PIPE, stderr=PIPE, env=env)
        self._transports: list[asyncio.BaseTransport] = []
        self._timers: list[asyncio.TimerHandle] = []

    async def read_into(self, out: asyncio.BaseProtocol, err: asyncio.BaseProtocol) -> None:
        """Have the running loop read both pipes from now on."""
        for protocol, pipe in ((out, self._process.stdout), (err, self._process.stderr)):
            await self._connect(asyncio.get_running_loop().connect_read_pipe, protocol, pipe)

    async def hear(self, out: Callable[[bytes], None], err: Callable[[bytes], None]) -> None:
        """Pass the output to `out` and `err` until the child has ended and its pipes are read.

        Does not wait for the end of the pipes: processes that the child started may keep them open.
        """
        reporting = asyncio.Event(), asyncio.Event()
        await self.read_into(Taker(out, reporting[0].set), Taker(err, reporting[1].set))
        await self.exit_status()
        for one in reporting:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(one.wait(), _REST_S)

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
