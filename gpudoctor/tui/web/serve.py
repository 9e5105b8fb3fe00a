"""`gpudoctor tui --serve`: the same screen in a web browser, read-only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gpudoctor.errors import UserError
from gpudoctor.http.address import ListenAddress, is_host, listen_address
from gpudoctor.http.listener import BoundedListener, ended_by_signal
from gpudoctor.process.own_program import own_gpudoctor
from gpudoctor.report.html.render import render
from gpudoctor.text.output import printable, say
from gpudoctor.tui.start import TuiRequest, opened
from gpudoctor.tui.web.session import DEFAULT_ADDRESS, BrowserAccess, token_of

try:
    import textual_serve
    from aiohttp import WSMsgType, web
except ImportError:
    raise UserError("tui --serve wants textual-serve: pip install 'textual-serve>=1.1.3,<2'") from None

from gpudoctor.http.server import HEADERS, one_line, serving
from gpudoctor.tui.web.session import WebSession

SESSIONS_MAX = 8
# 8 screens, each with its page, its scripts and a reload; browsers open 6 connections at a time
CONNECTIONS_MAX = 64
HEAD_S = 5.0
_CLIENT = Path(textual_serve.__file__).parent / "static"
_HERE = Path(__file__).parent
_MESSAGE_MAX = 1 << 20
_SHUTDOWN_S = 4.0
_FONT_SIZE = 16
_HEADERS = {
    **HEADERS,
    # frame-ancestors: against clickjacking; connect-src: the client's ?ping= would request any address
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "font-src 'self'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def serve(request: TuiRequest, serve_at: str, token: str | None) -> int:
    """Serve the screen at HOST:PORT until SIGINT, SIGTERM or SIGHUP; return 128 + its number. Raise UserError."""
    where = listen_address(serve_at, "--serve", DEFAULT_ADDRESS)
    gate = BrowserAccess(token_of(token, os.environ, where), where.host)
    feed, _ = opened(request)  # report an unreadable source now, not in each browser
    feed.close()
    return asyncio.run(_serve(ScreenServer(app_command(request), gate, feed.label), where))


def app_command(request: TuiRequest) -> list[str]:
    """The command of each browser's app: the same source, read-only."""
    command = [*own_gpudoctor(), "tui", "--read-only", f"--interval={request.interval_s:g}"]
    command += [] if request.node is None else [f"--node={request.node}"]
    command += [f"--fault={fault}" for fault in request.faults]
    command += [] if request.theme is None else [f"--theme={request.theme}"]
    return command + ([] if request.config is None else [f"--config={request.config}"])


async def _serve(server: ScreenServer, where: ListenAddress) -> int:
    ended = ended_by_signal()
    sockets = where.listening_sockets()
    runner = web.AppRunner(server.app(), shutdown_timeout=_SHUTDOWN_S)
    async with serving(runner, sockets, server.connections):
        url = where.url(int(sockets[0].getsockname()[1]))
        say(f"serving {printable(server.title)} read-only on {url}  (ctrl-c ends it)")
        if server.wants_token:
            say(f"open {url}?token=TOKEN with your token once; the browser then keeps a cookie")
            if not where.is_loopback:
                say("the connection is not encrypted: on a network that you do not trust, use an ssh tunnel")
        return await ended


class ScreenServer:
    """Serves pages, the terminal's script, and a websocket with a separate app process for each browser."""

    def __init__(self, command: Sequence[str], gate: BrowserAccess, title: str) -> None:
        self.title = title
        self._command = command
        self._gate = gate
        self.connections = BoundedListener(CONNECTIONS_MAX, HEAD_S, until_heard=True)
        self._sockets: set[web.WebSocketResponse] = set()
        self._sessions: set[WebSession] = set()

    @property
    def wants_token(self) -> bool:
        return self._gate.wants_token

    def app(self) -> web.Application:
        """The aiohttp application; access control covers every route, static files and the websocket included."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/ws", self._websocket),
                web.get("/{name:page[.](?:css|js)}", self._own_file),
                web.static("/static", _CLIENT),
            ]
        )
        app.on_shutdown.append(self._shut_down)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        host = request.headers.getall("Host", [])
        if len(host) != 1 or not is_host(host[0]):
            return one_line(400, "the Host header is no HOST:PORT", _HEADERS)
        refusal = self._gate.refusal(host[0], request.headers.get("Origin"))
        if refusal is not None:
            return one_line(403, f"refused: {refusal}", _HEADERS)
        given = request.query.get("token")
        if given is not None and self._gate.is_token(given) and request.path == "/" and request.method == "GET":
            return self._welcome(request)
        cookie = request.cookies.get(_cookie_name(request))
        if not self._gate.knows(authorization=request.headers.get("Authorization"), cookie=cookie):
            expected = "a token is wanted: open /?token=TOKEN, or send Authorization: Bearer TOKEN"
            return one_line(401, expected, {**_HEADERS, "WWW-Authenticate": "Bearer"})
        self.connections.heard(request.transport)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return one_line(error.status, f"{error.status} {error.reason}", _HEADERS)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    def _welcome(self, request: web.Request) -> web.Response:
        """Set the cookie and redirect, so that the token leaves the address bar."""
        self.connections.heard(request.transport)
        # a redirect: a request from this page is same-site, so that the browser sends its new cookie
        response = _page(render(_HERE / "token_accepted.html"))
        response.set_cookie(
            _cookie_name(request), self._gate.secret, httponly=True, samesite="Strict", secure=request.secure, path="/"
        )
        return response

    async def _index(self, request: web.Request) -> web.Response:
        """The terminal page. textual-serve's script needs its class, the two data attributes and #start."""
        scheme = "wss" if request.secure or request.headers.get("X-Forwarded-Proto") == "https" else "ws"
        url, size = f"{scheme}://{request.host}/ws", _number(request, "fontsize", _FONT_SIZE)
        size = size if 6 <= size <= 48 else _FONT_SIZE
        return _page(render(_HERE / "screen.html", title=self.title, websocket_url=url, font_size=size))

    async def _own_file(self, request: web.Request) -> web.FileResponse:
        return web.FileResponse(_HERE / request.match_info["name"])

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        if len(self._sessions) >= SESSIONS_MAX:
            return one_line(503, f"{SESSIONS_MAX} browsers watch already", _HEADERS)
        socket = web.WebSocketResponse(heartbeat=15, max_msg_size=_MESSAGE_MAX)
        session = WebSession(self._command, socket.send_bytes)
        self._sessions.add(session)
        self._sockets.add(socket)
        try:
            await socket.prepare(request)
            await session.start(_number(request, "width", 80), _number(request, "height", 24))
            drawing = asyncio.create_task(self._draw(session, socket))
            try:
                await _listen(session, socket)
            finally:
                drawing.cancel()
                with suppress(asyncio.CancelledError):
                    await drawing
        except OSError as error:
            say(f"a browser's screen could not be started: {error.strerror or error}")
        finally:
            await asyncio.shield(self._end(session))
            self._sockets.discard(socket)
        return socket

    async def _draw(self, session: WebSession, socket: web.WebSocketResponse) -> None:
        try:
            why = await session.run()
        except (ConnectionError, RuntimeError):  # the browser has disconnected
            return
        if why is not None:
            say(f"a browser's screen: {why}")
        await socket.close()

    async def _end(self, session: WebSession) -> None:
        try:
            await session.stop()
        finally:
            self._sessions.discard(session)

    async def _shut_down(self, app: web.Application) -> None:
        """End every app, then close the websockets; handlers that still wait find their session ended."""
        await asyncio.gather(*(self._end(session) for session in list(self._sessions)))
        await asyncio.gather(*(socket.close(code=1001) for socket in list(self._sockets) if socket.prepared))


async def _listen(session: WebSession, socket: web.WebSocketResponse) -> None:
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            continue
        try:
            envelope = message.json()
        except (ValueError, RecursionError):
            continue
        match envelope:
            case ["ping", str(data)]:
                with suppress(ConnectionError):
                    await socket.send_json(["pong", data])
            case _:
                await session.take(envelope)


def _page(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html", headers=_HEADERS)


def _cookie_name(request: web.Request) -> str:
    # cookies ignore ports: two servers on one machine must not overwrite each other's
    return f"gpudoctor-{request.host.rpartition(':')[2] if ':' in request.host else 'web'}".replace("]", "")


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else default
