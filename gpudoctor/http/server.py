"""Serves HTTP through aiohttp, with a bound on the memory and time that an unknown client can use."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import web

from gpudoctor.http.listener import BoundedListener
from gpudoctor.text.output import printable, say

HEAD_BYTES_MAX = 16 << 10
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "gpudoctor"}
_KEPT_ALIVE_S = 15.0
_NOBODY = logging.getLogger(__name__)
_NOBODY.addHandler(logging.NullHandler())
_NOBODY.propagate = False
_NOBODY.setLevel(logging.CRITICAL + 1)


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
