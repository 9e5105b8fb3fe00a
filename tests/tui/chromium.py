"""Headless Chromium, driven over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

DEADLINE_S = 180.0  # only stops what hangs
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0"),
)
# textual-serve keeps its terminal to itself; each of xterm.js's addons is told of it by this name
CATCH_TERMINAL = """
Object.defineProperty(Object.prototype, "_terminal", {
  configurable: true,
  get() { return undefined; },
  set(value) {
    if (value && value.buffer && value.onWriteParsed) window.caughtTerminal = value;
    Object.defineProperty(this, "_terminal", {value, writable: true, configurable: true, enumerable: true});
  },
});
"""
_SCREEN = """
(() => {
  const buffer = window.caughtTerminal && window.caughtTerminal.buffer.active;
  if (!buffer) return "";
  return Array.from({length: buffer.length}, (_, n) => buffer.getLine(n).translateToString(true)).join("\\n");
})()
"""


class Page:
    """One tab; `requests` are the addresses that it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._events: list[tuple[Callable[[dict[str, Any]], bool], asyncio.Future[Any]]] = []
        self._session: str | None = None
        self.requests: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                answer = self._answers.pop(said["id"], None)
                if answer is not None and not answer.done():
                    answer.set_result(said)
                continue
            if said["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                params = said["params"]
                self.requests.append(params.get("url") or params["request"]["url"])
            for wanted, event in self._events:
                if wanted(said) and not event.done():
                    event.set_result(said)

    async def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        session = {} if self._session is None else {"sessionId": self._session}
        await self._socket.send_json({"id": number, "method": method, "params": params, **session})
        said = await asyncio.wait_for(answer, DEADLINE_S)
        assert "error" not in said, said
        return said["result"]

    async def attach(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            await self.call(f"{domain}.enable")

    async def open(self, url: str, width: int = 1200, height: int = 800, until: str = "") -> None:
        """Go there and wait until all is loaded; of a page that goes on by itself, until the next asked for this."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        asked = self._event("Network.requestWillBeSent", until) if until else None
        loaded = self._event("Page.loadEventFired")
        await self.call("Page.navigate", url=url)
        await asyncio.wait_for(loaded, DEADLINE_S)
        if asked is not None:
            await asyncio.wait_for(asked, DEADLINE_S)
            # before the question: the event may come with the answer
            loaded = self._event("Page.loadEventFired")
            if await self.evaluate("document.readyState") != "complete":
                await asyncio.wait_for(loaded, DEADLINE_S)

    def _event(self, method: str, words: str = "") -> asyncio.Future[Any]:
        """Done with the next event of this kind that holds these words."""
        event: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._events.append((lambda said: said["method"] == method and words in str(said["params"]), event))
        return event

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        said = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def screen_with(self, words: str) -> str:
        """The terminal's text, as soon as it holds these words; each piece that is drawn is looked at."""
        milliseconds = int(DEADLINE_S * 900)
        return str(
            await self.evaluate(
                f"""new Promise((done, give_up) => {{
                  const look = () => {{ const text = {_SCREEN}; if (text.includes({words!r})) done(text); }};
                  setTimeout(() => give_up(new Error("not on the screen:\\n" + {_SCREEN})), {milliseconds});
                  window.caughtTerminal.onWriteParsed(look);
                  look();
                }})"""
            )
        )

    async def type(self, text: str) -> None:
        for letter in text:
            await self.call("Input.dispatchKeyEvent", type="keyDown", key=letter, text=letter)
            await self.call("Input.dispatchKeyEvent", type="keyUp", key=letter)

    async def picture(self, path: Path, **params: Any) -> None:
        shot = await self.call("Page.captureScreenshot", format="png", **params)
        path.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def browsing(path: str, profile: Path) -> AsyncIterator[Page]:
    """A fresh browser with one empty tab; ended afterwards, whatever happens."""
    process = await asyncio.create_subprocess_exec(
        path,
        *_FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    reading: list[asyncio.Task[Any]] = []
    try:
        url = await asyncio.wait_for(_devtools(process.stderr), DEADLINE_S)
        reading.append(asyncio.create_task(_ignore(process.stderr)))
        async with aiohttp.ClientSession() as client, client.ws_connect(url, max_msg_size=0) as socket:
            page = Page(socket)
            reading.append(asyncio.create_task(page.listen()))
            await page.attach()
            yield page
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _devtools(stderr: asyncio.StreamReader) -> str:
    said = []
    while line := (await stderr.readline()).decode("utf-8", "replace"):
        said.append(line)
        if line.startswith("DevTools listening on "):
            return line.removeprefix("DevTools listening on ").strip()
    raise AssertionError(f"the browser ended: {''.join(said)}")


async def _ignore(stderr: asyncio.StreamReader) -> None:
    while await stderr.read(1 << 16):
        pass
