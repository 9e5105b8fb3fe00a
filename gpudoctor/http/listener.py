"""Lets connections in: a bounded number, each for a bounded time, until a signal ends the server."""

from __future__ import annotations

import asyncio
import errno
import socket
from asyncio import Protocol, Transport
from collections.abc import Callable

from gpudoctor.process.ending import ENDING_SIGNALS

_PAUSE_S = 0.1
# of the system, not of this connection: tried again soon
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class BoundedListener:
    """Hands the connections of listening sockets to protocols, never more than `connections_max` at a time.

    At `connections_max` the oldest connection that has not asked for anything makes room; if all have,
    the new one is refused. A connection ends after `limit_s`: one for which `heard` was not called if
    `until_heard`, else each.
    """

    def __init__(self, connections_max: int, limit_s: float, *, until_heard: bool) -> None:
        self._connections_max = connections_max
        self._limit_s = limit_s
        self._until_heard = until_heard
        self._silent: dict[Transport, asyncio.TimerHandle] = {}  # the oldest first
        self._heard: dict[Transport, asyncio.TimerHandle] = {}

    @property
    def connections(self) -> int:
        """How many are open."""
        self._forget_closed()
        return len(self._silent) + len(self._heard)

    def heard(self, transport: asyncio.BaseTransport | None) -> None:
        """This connection has asked for something that it may have."""
        if isinstance(transport, Transport) and (timer := self._silent.pop(transport, None)) is not None:
            if self._until_heard:
                timer.cancel()
            self._heard[transport] = timer

    def has_heard(self, transport: asyncio.BaseTransport | None) -> bool:
        return transport in self._heard

    async def listen(self, listener: socket.socket, make: Callable[[], Protocol]) -> None:
        """Take connections until it is cancelled, each for a protocol that `make` makes."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _OUT_OF:
                    self._drop_oldest()
                    await asyncio.sleep(_PAUSE_S)
                continue  # else it was gone before it was let in
            if not self._has_room():
                connection.close()
                continue
            try:
                transport, _ = await loop.connect_accepted_socket(make, connection)
            except OSError:
                connection.close()
                continue
            self._silent[transport] = loop.call_later(self._limit_s, self._hang_up, transport)

    def _has_room(self) -> bool:
        return self.connections < self._connections_max or self._drop_oldest()

    def _forget_closed(self) -> None:
        # whoever closed a connection, we or the other end, the transport knows
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
    """What becomes 128 + the number of the first signal that is to end this process."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(128 + number)

    for number in ENDING_SIGNALS:
        loop.add_signal_handler(number, end, number)
    return ended
