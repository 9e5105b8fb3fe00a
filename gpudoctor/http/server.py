"""Serves HTTP through aiohttp, with a bound on the connections, memory and time that unknown clients can use."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from asyncio import Protocol, Transport
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import web

from gpudoctor.exits import printable, say
from gpudoctor.process.ending import ENDING_SIGNALS

_PAUSE_S = 0.1
# shortages of the system, not errors of one connection: accept is tried again soon
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
HEAD_BYTES_MAX = 16 << 10
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "gpudoctor"}
_KEPT_ALIVE_S = 15.0
_NOBODY = logging.getLogger(__name__)
_NOBODY.addHandler(logging.NullHandler())
_NOBODY.propagate = False
_NOBODY.setLevel(logging.CRITICAL + 1)


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
        """The number of open connections."""
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


@asynccontextmanager
async def serving(
    runner: web.AppRunner | web.ServerRunner, sockets: Sequence[socket.socket], listener: BoundedListener
) -> AsyncIterator[None]:
    """Serve requests from the listening sockets; at the end close them and the runner.

    Handlers call `listener.heard` for an allowed request; until then at most `HEAD_BYTES_MAX` of a connection is read.
    """
    # clients' errors must not fill the log, let alone with one traceback per connection
    for name in ("aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    await runner.setup()
    server = runner.server
    assert server is not None
    accepting = [asyncio.create_task(listener.listen(each, lambda: _Connection(server, listener))) for each in sockets]
    try:
        yield
    finally:
        for task in accepting:
            task.cancel()
        for each in sockets:
            each.close()
        await runner.cleanup()


def one_line(status: int, text: str, headers: Mapping[str, str] = HEADERS) -> web.Response:
    """A one-line answer, after which the connection is closed."""
    response = web.Response(status=status, text=f"gpudoctor: {printable(text)}\n", headers=headers)
    response.force_close()
    return response


class _Connection(web.RequestHandler):
    """aiohttp's connection handler, with a bound on the whole request head and one-line error answers."""

    def __init__(self, server: web.Server, listener: BoundedListener) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_KEPT_ALIVE_S,
            lingering_time=0,  # request bodies are never read
            max_line_size=HEAD_BYTES_MAX,
            max_field_size=HEAD_BYTES_MAX,
            logger=_NOBODY,
            access_log=_NOBODY,
        )
        self._listener = listener
        self._unheard_bytes = 0

    def data_received(self, data: bytes) -> None:
        if not self._listener.has_heard(self.transport):
            begins = not self._unheard_bytes
            self._unheard_bytes += len(data)
            if self._unheard_bytes > HEAD_BYTES_MAX:
                return self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large")
            if begins and data.startswith(b"\r\n"):  # on which aiohttp would wait for more
                return self._refuse(HTTPStatus.BAD_REQUEST, "this is not an HTTP request")
        return super().data_received(data)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Answer and close before aiohttp has a complete request."""
        body = f"gpudoctor: {text}\n"
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        if self.transport is not None:
            self.transport.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
            self.transport.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer errors in one line: aiohttp would echo the client's bytes, or send an HTML page."""
        if request.writer.output_size > 0:
            raise ConnectionError("part of another answer is sent already")
        if status < 500:
            return one_line(status, "this is not an HTTP request")
        say(f"a request could not be answered: {type(exc).__name__}: {printable(str(exc))}")
        return one_line(status, "an error of gpudoctor's own")
