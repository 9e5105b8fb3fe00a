"""One browser's screen: the app as a child process that talks Textual's web protocol."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from gpudoctor.exits import printable
from gpudoctor.tui.web.access import TOKEN_VARIABLE

_READY = b"__GANGLION__\n"
_PR_SET_PDEATHSIG = 1
_PACKET_MAX = 64 << 20
_ASKED_S, _TERMINATED_S = 1.5, 1.0
_SIZES = {"width": (20, 500), "height": (5, 200)}


def end_with_server() -> None:
    """In the app: be sent SIGTERM when the server dies, however it does; Textual's web driver would not notice."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    except (OSError, AttributeError):  # not Linux
        return


class WebSession:
    """Starts the app, hands its output to `show`, and ends it without fail.

    Of what the app can ask a browser for, only its end is passed on: no file is delivered, no page opened.
    """

    def __init__(self, command: Sequence[str], show: Callable[[bytes], Awaitable[None]]) -> None:
        self._command = command
        self._show = show
        self._process: asyncio.subprocess.Process | None = None
        self._last_words: deque[str] = deque(maxlen=1)

    async def start(self, width: int, height: int) -> None:
        """Raise OSError where the app cannot be started."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(_within("width", width), _within("height", height)),
            start_new_session=True,  # what the terminal sends is for the server; and a group can be ended as one
        )

    async def run(self) -> str | None:
        """Pass on what the app draws until it ends; in words why, where it was not asked to."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        listening = asyncio.create_task(self._listen(process.stderr))
        ended = False
        try:
            while await process.stdout.readline() not in (_READY, b""):
                pass
            while True:
                kind = await process.stdout.readexactly(1)
                size = int.from_bytes(await process.stdout.readexactly(4), "big")
                if size > _PACKET_MAX:
                    return "the app wrote more than a screen"
                payload = await process.stdout.readexactly(size)
                if kind == b"D":
                    await self._show(payload)
                elif kind == b"M" and json.loads(payload).get("type") == "exit":
                    ended = True
        except (asyncio.IncompleteReadError, ValueError):
            await listening
            return None if ended else f"the app ended: {next(iter(self._last_words), 'it said nothing')}"
        finally:
            listening.cancel()

    async def take(self, envelope: object) -> None:
        """What the browser says: keys, its size, whether it is looked at. Anything else is nothing to us."""
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
        """End the app: asked first, then by SIGTERM, at last the whole group by SIGKILL."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._meta({"type": "quit"}), 0.5)
            if not await self._over(_ASKED_S):
                self._signal(signal.SIGTERM)
                await self._over(_TERMINATED_S)
        # also what the app may have left behind
        self._signal(signal.SIGKILL)
        await self._over(_TERMINATED_S)

    async def _over(self, limit_s: float) -> bool:
        assert self._process is not None
        # what nobody reads keeps a process from writing, and so from ending
        drained = asyncio.create_task(_drain(self._process.stdout))
        try:
            await asyncio.wait_for(self._process.wait(), limit_s)
        except asyncio.TimeoutError:
            return False
        finally:
            drained.cancel()
        return True

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(OSError):
            os.killpg(self._process.pid, number)

    async def _meta(self, message: dict[str, object]) -> None:
        await self._send(b"M", json.dumps(message).encode())

    async def _send(self, kind: bytes, payload: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with suppress(OSError, RuntimeError):  # it has just ended
            self._process.stdin.write(kind + len(payload).to_bytes(4, "big") + payload)
            await self._process.stdin.drain()

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        """Keep the last line of what the app says went wrong."""
        while chunk := await stderr.read(4096):
            said = [line for line in chunk.decode("utf-8", "replace").splitlines() if line.strip()]
            self._last_words.extend(printable(line.strip())[:200] for line in said[-1:])


async def _drain(stream: asyncio.StreamReader | None) -> None:
    with suppress(RuntimeError):  # somebody else reads it
        while stream is not None and await stream.read(1 << 16):
            pass


def _environment(width: int, height: int) -> dict[str, str]:
    """What Textual's web driver is told; the token is not for the app."""
    kept = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    return {
        **kept,
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
