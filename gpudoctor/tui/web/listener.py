"""Lets connections in: a bounded number, and each has to ask for something soon, or it is hung up on."""

from __future__ import annotations

import asyncio
import errno
import socket
from asyncio import Protocol, Transport
from collections.abc import Callable

# 8 screens, each with its page, scripts and a reload beside; browsers open 6 at a time
CONNECTIONS_MAX = 64
HEAD_S = 5.0
_BACKLOG = 64
_PAUSE_S = 0.1
# of the system, not of this connection: tried again soon
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class WebListener:
    """Hands connections on a listening socket to protocols that `make` makes.

    A connection for which `heard` was not called within `head_s` ends. At `connections_max` the
    oldest one that has not asked for anything makes room; if all have, the new one is refused.
    """

    def __init__(
        self, make: Callable[[], Protocol], connections_max: int = CONNECTIONS_MAX, head_s: float = HEAD_S
    ) -> None:
        self._make = make
        self._connections_max = connections_max
        self._head_s = head_s
        self._silent: dict[Transport, asyncio.TimerHandle] = {}  # the oldest first
        self._heard: set[Transport] = set()

    def heard(self, transport: asyncio.BaseTransport | None) -> None:
        """This connection has asked for something that it may have."""
        if isinstance(transport, Transport) and (timer := self._silent.pop(transport, None)) is not None:
            timer.cancel()
            self._heard.add(transport)

    async def listen(self, listener: socket.socket) -> None:
        """Take connections until it is cancelled."""
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
                transport, _ = await loop.connect_accepted_socket(self._make, connection)
            except OSError:
                connection.close()
                continue
            self._silent[transport] = loop.call_later(self._head_s, self._hang_up, transport)

    def _has_room(self) -> bool:
        # whoever closed a connection, we or the other end, the transport knows
        for transport in [each for each in self._silent if each.is_closing()]:
            self._silent.pop(transport).cancel()
        self._heard = {transport for transport in self._heard if not transport.is_closing()}
        return len(self._silent) + len(self._heard) < self._connections_max or self._drop_oldest()

    def _drop_oldest(self) -> bool:
        oldest = next(iter(self._silent), None)
        if oldest is not None:
            self._hang_up(oldest)
        return oldest is not None

    def _hang_up(self, transport: Transport) -> None:
        self._silent.pop(transport).cancel()
        transport.abort()


def listening(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of that name, all on one port. Raise OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            own_port = sockets[0].getsockname()[1] if sockets else port
            listener = socket.create_server((address[0], own_port, *address[2:]), family=family, backlog=_BACKLOG)
            sockets.append(listener)
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    return sockets
