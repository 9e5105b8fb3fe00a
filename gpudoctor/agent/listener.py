"""Takes connections: a bounded number, each for a bounded time, one request each."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from gpudoctor.agent.answers import too_large

CONNECTIONS_MAX = 32
CONNECTION_S = 10.0  # Prometheus itself gives up after 10 s
HEAD_BYTES_MAX = 16 << 10


class HttpListener:
    """Answers what comes in on a bound socket with `answer`, which must not wait for anything."""

    def __init__(
        self,
        answer: Callable[[bytes], bytes],
        connections_max: int = CONNECTIONS_MAX,
        connection_s: float = CONNECTION_S,
    ) -> None:
        self._answer = answer
        self._connections_max = connections_max
        self._connection_s = connection_s
        self._open: set[asyncio.Task[None]] = set()
        # those whose request has not come whole, the oldest first
        self._silent: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        return len(self._open)

    async def start(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._connected, sock=listener, limit=HEAD_BYTES_MAX)

    async def stop(self) -> None:
        """Stop listening and drop whoever is still connected."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._connections_max and not self._drop_oldest():
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)
        self._silent[writer] = task
        task.add_done_callback(self._open.discard)

    def _drop_oldest(self) -> bool:
        """Make room: who has asked for nothing yet goes first, so that idle connections keep nobody out."""
        writer = next(iter(self._silent), None)
        if writer is None:
            return False
        task = self._silent.pop(writer)
        self._open.discard(task)
        task.cancel()
        writer.transport.abort()  # a task that has not begun would not do it
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # one limit for all of it: a client that sends or reads a byte at a time gets no longer
            with suppress(asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
                await asyncio.wait_for(self._exchange(reader, writer), self._connection_s)
        finally:
            self._silent.pop(writer, None)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            writer.write(too_large())
        else:
            self._silent.pop(writer, None)
            writer.write(self._answer(head))
        writer.close()  # once all is sent
        await writer.wait_closed()
