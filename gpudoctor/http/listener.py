"""Accepts connections: a bounded number, each for a bounded time, until a signal ends the server."""

from __future__ import annotations

import asyncio
import errno
import socket
from asyncio import Protocol, Transport
from collections.abc import Callable

from gpudoctor.process.ending import ENDING_SIGNALS

_PAUSE_S = 0.1
# shortages of the system, not errors of one connection: accept is tried again soon
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class BoundedListener:
    """Accepts connections for protocols, at most `connections_max` at a time.

    At the limit, the oldest connection without a valid request is closed to make room; if all have made one, the new
    connection is refused. Connections end after `limit_s`: if `until_heard`, only those for which `heard` was not
    called, else all.
    """

    def __init__(self, connections_max: int, limit_s: float, *, until_heard: bool) -> None:
        self._connections_max = connections_max
        self._limit_s = limit_s
        self._until_heard = until_heard
        self._silent: dict[Transport, asyncio.TimerHandle] = {}  # oldest first
        self._heard: dict[Transport, asyncio.TimerHandle] = {}

    @property
    def connections(self) -> int:
        self._forget_closed()
        return len(self._silent) + len(self._heard)

    def heard(self, transport: asyncio.BaseTransport | None) -> None:
        """Record that this connection has made a request that is allowed."""
        if isinstance(transport, Transport) and (timer := self._silent.pop(transport, None)) is not None:
            if self._until_heard:
                timer.cancel()
            self._heard[transport] = timer

    def has_heard(self, transport: asyncio.BaseTransport | None) -> bool:
        return transport in self._heard

    async def listen(self, listener: socket.socket, make: Callable[[], Protocol]) -> None:
        """Accept connections until cancelled, each with a new protocol from `make`."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _OUT_OF:
                    self._drop_oldest()
                    await asyncio.sleep(_PAUSE_S)
                continue  # otherwise the client closed the connection before it was accepted
            if self.connections >= self._connections_max and not self._drop_oldest():
                connection.close()
                continue
            try:
                transport, _ = await loop.connect_accepted_socket(make, connection)
            except OSError:
                connection.close()
                continue
            self._silent[transport] = loop.call_later(self._limit_s, self._hang_up, transport)

    def _forget_closed(self) -> None:
        # the transport knows about a close by either end
        for known in (self._silent, self._heard):
            for transport in [each for each in known if each.is_closing() and not each.get_write_buffer_size()]:
                known.pop(transport).cancel()

    def _drop_oldest(self) -> bool:
        oldest = next(iter(self._silent), None)
        if oldest is not None:
            self._hang_up(oldest)
        return oldest is not None

    def _hang_up(self, transport: Transport) -> None:
        for known in (self._silent, self._heard):
            if (timer := known.pop(transport, None)) is not None:
                timer.cancel()
        transport.abort()


def ended_by_signal() -> asyncio.Future[int]:
    """A future that resolves to 128 + the number of the first signal to end this process."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(128 + number)

    for number in ENDING_SIGNALS:
        loop.add_signal_handler(number, end, number)
    return ended
