"""One browser's screen: the app as a child process that speaks Textual's web protocol."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from gpudoctor.errors import UserError
from gpudoctor.http.address import TOKEN_LENGTH_MIN, HttpAccess, ListenAddress, digest
from gpudoctor.process.async_child import AsyncChild
from gpudoctor.process.ending import send_signal
from gpudoctor.process.spawn import PIPE
from gpudoctor.text.output import printable

# Access to the served screen: the token, the secret cookie and the Origin header.

DEFAULT_ADDRESS = "127.0.0.1:8080"
TOKEN_VARIABLE = "GPUDOCTOR_SERVE_TOKEN"
_READY = b"__GANGLION__\n"
_PACKET_MAX = 64 << 20
_ASKED_S, _TERMINATED_S = 1.5, 1.0
_SIZES = {"width": (20, 500), "height": (5, 200)}


def token_of(given: str | None, environ: Mapping[str, str], where: ListenAddress) -> str | None:
    """The token that a browser must present; None if none is needed. Raise UserError if one is needed and missing."""
    token = given if given is not None else environ.get(TOKEN_VARIABLE) or None
    if token is None and not where.is_loopback:
        raise UserError(
            f"{where.option} {where.host}:{where.port}: others can reach it, so it wants --serve-token TOKEN "
            f"(or {TOKEN_VARIABLE} in the environment, which ps does not show)"
        )
    if token is not None and len(token) < TOKEN_LENGTH_MIN:
        raise UserError(f"--serve-token: at least {TOKEN_LENGTH_MIN} characters are wanted")
    return token


class BrowserAccess(HttpAccess):
    """Access control for browsers: refuses requests from other sites' pages, accepts a secret instead of the token.

    The secret is created at start and valid until the server ends.
    """

    def __init__(self, token: str | None, listens_on: str | None = None) -> None:
        super().__init__(token, listens_on)
        self.secret = secrets.token_urlsafe(32)

    def refusal(self, host: str | None, origin: str | None = None) -> str | None:
        """Why a request is refused whatever its token, None if it is not; `host` and `origin` are the headers."""
        refused = super().refusal(host)
        if refused is None and origin is not None and origin.partition("://")[2].lower() != (host or "").lower():
            return f"a page of {printable(origin)[:80]} may not ask this server"
        return refused

    def knows(self, authorization: str | None, cookie: str | None = None) -> bool:
        """Whether a request may be answered: no token is needed, or it presents the token or the secret."""
        known = cookie is not None and hmac.compare_digest(digest(cookie), digest(self.secret))
        return known or super().knows(authorization)


class WebSession:
    """Starts the app, passes its output to `show`, and always ends it.

    Of the app's requests to the browser only its exit is handled: no file is delivered, no page opened.
    """

    def __init__(self, command: Sequence[str], show: Callable[[bytes], Awaitable[None]]) -> None:
        self._command = command
        self._show = show
        self._process: AsyncChild | None = None
        self._out = asyncio.StreamReader()
        self._in: asyncio.StreamWriter | None = None

    async def start(self, width: int, height: int) -> None:
        """Raise OSError if the app cannot be started."""
        environ = _environment(_within("width", width), _within("height", height))
        self._process = AsyncChild(self._command, stdin=PIPE, env=environ)
        await self._process.read_into(asyncio.StreamReaderProtocol(self._out))
        self._in = await self._process.writer()

    async def run(self) -> str | None:
        """Pass on what the app draws until it ends; return the reason if it did not exit by itself."""
        assert self._process is not None
        ended = False
        try:
            while await self._out.readline() not in (_READY, b""):
                pass
            while True:
                kind = await self._out.readexactly(1)
                size = int.from_bytes(await self._out.readexactly(4), "big")
                if size > _PACKET_MAX:
                    return "the app wrote more than a screen"
                payload = await self._out.readexactly(size)
                if kind == b"D":
                    await self._show(payload)
                elif kind == b"M" and json.loads(payload).get("type") == "exit":
                    ended = True
        except (asyncio.IncompleteReadError, ValueError):
            await self._process.stderr_ended.wait()
            message = printable(self._process.last_message())[:200]
            return None if ended else f"the app ended: {message or 'it said nothing'}"

    async def take(self, envelope: object) -> None:
        """Handle a message of the browser: keys, size, focus. Anything else is ignored."""
        match envelope:
            case ["stdin", str(keys)]:
                await self._send(b"D", keys.encode("utf-8", "replace"))
            case ["resize", {"width": int(width), "height": int(height)}]:
                size = {"width": _within("width", width), "height": _within("height", height)}
                await self._meta({"type": "resize", **size})
            case ["focus" | "blur" as which, *_]:
                await self._meta({"type": which})
            case _:
                return

    async def stop(self) -> None:
        """End the app: by a quit message, then SIGTERM, at last SIGKILL to its process group."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._meta({"type": "quit"}), 0.5)
            if not await self._over(_ASKED_S):
                process.send(signal.SIGTERM, group=True)
                await self._over(_TERMINATED_S)
        # also processes that the app may have left behind
        send_signal(process.pid, signal.SIGKILL, group=True)
        await self._over(_TERMINATED_S)
        process.stop_reading()

    async def _over(self, limit_s: float) -> bool:
        assert self._process is not None
        # a process that blocks on a full pipe cannot end
        drained = asyncio.create_task(_drain(self._out))
        try:
            return await self._process.exit_status(limit_s) is not None
        finally:
            drained.cancel()

    async def _meta(self, message: dict[str, object]) -> None:
        await self._send(b"M", json.dumps(message).encode())

    async def _send(self, kind: bytes, payload: bytes) -> None:
        if self._in is None:
            return
        with suppress(OSError, RuntimeError):  # it has just ended
            self._in.write(kind + len(payload).to_bytes(4, "big") + payload)
            await self._in.drain()


async def _drain(stream: asyncio.StreamReader) -> None:
    with suppress(RuntimeError):  # `run` is reading already
        while await stream.read(1 << 16):
            pass


def _environment(width: int, height: int) -> dict[str, str]:
    """The environment for Textual's web driver, without the token, which the app does not need."""
    retained = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    return {
        **retained,
        "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver",
        "TEXTUAL_COLOR_SYSTEM": "truecolor",
        "TEXTUAL_FPS": "20",
        "TERM_PROGRAM": "textual",
        "COLUMNS": str(width),
        "ROWS": str(height),
    }


def _within(name: str, value: int) -> int:
    low, high = _SIZES[name]
    return min(max(value, low), high)
