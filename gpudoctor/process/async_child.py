"""A child whose pipes an event loop reads.

Not asyncio's subprocesses: their watcher waits for the child, and one that sits in a driver call does not end.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from gpudoctor.process.spawn import DEVNULL, PIPE, Child

_POLL_S = 0.02
_DEATH_S = 0.05  # what a killed process is waited for; the screen must not stand still for longer
_REST_S = 1.0  # what it wrote last lies in its pipes already


class AsyncChild(Child):
    """A child with pipes from its standard output and error. Raise OSError if it cannot be started."""

    def __init__(self, argv: Sequence[str], *, stdin: int = DEVNULL, env: Mapping[str, str] | None = None) -> None:
        super().__init__(argv, stdin=stdin, stdout=PIPE, stderr=PIPE, env=env)
        self._transports: list[asyncio.BaseTransport] = []
        self._timers: list[asyncio.TimerHandle] = []

    async def read_into(self, out: asyncio.BaseProtocol, err: asyncio.BaseProtocol) -> None:
        """Have the loop read both pipes from here on."""
        for protocol, pipe in ((out, self._process.stdout), (err, self._process.stderr)):
            await self._connect(asyncio.get_running_loop().connect_read_pipe, protocol, pipe)

    async def hear(self, out: Callable[[bytes], None], err: Callable[[bytes], None]) -> None:
        """Have both takers hear what comes until it has ended, and then what is left.

        Not until the pipes end: what it started may run on and hold them.
        """
        heard = asyncio.Event(), asyncio.Event()
        await self.read_into(Taker(out, heard[0].set), Taker(err, heard[1].set))
        await self.exit_status()
        for one in heard:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(one.wait(), _REST_S)

    async def writer(self) -> asyncio.StreamWriter:
        """A stream to its standard input."""
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        transport = await self._connect(loop.connect_write_pipe, protocol, self._process.stdin)
        return asyncio.StreamWriter(transport, protocol, None, loop)

    async def exit_status(self, limit_s: float | None = None) -> int | None:
        """The exit status, -n for signal n; None if it still runs after so long."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while (status := self.poll()) is None:
            if limit_s is not None and loop.time() - began_s >= limit_s:
                return None
            await asyncio.sleep(_POLL_S)
        return status

    def send_later(self, delay_s: float, number: int, *, group: bool = False) -> None:
        """Send a signal unless it has ended by then; without a running loop, never."""
        with suppress(RuntimeError):
            timer = asyncio.get_running_loop().call_later(delay_s, lambda: self._send_and_reap(number, group))
            self._timers.append(timer)

    def kill_now(self) -> None:
        """Kill its group; one that is stuck in the driver is left to the kernel."""
        if self.poll() is None:
            self._send_and_reap(signal.SIGKILL, group=True)

    def stop_reading(self) -> None:
        """Let go of the pipes."""
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    def cancel_timers(self) -> None:
        """Send nothing later."""
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
    """Hands on what a pipe tells, and its end."""

    def __init__(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._take, self._ended = take, ended

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
