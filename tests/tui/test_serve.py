"""The screen in a browser: who gets in, what is served, that nothing is left behind, and a real Chromium."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest
from aiohttp import WSServerHandshakeError

from gpudoctor.errors import UserError
from gpudoctor.http.address import ListenAddress, listen_address
from gpudoctor.tui.web.session import DEFAULT_ADDRESS, BrowserAccess, token_of
from tests.cli.conftest import Gpudoctor, assert_refused
from tests.needs import find, needs
from tests.tui.chromium import CATCH_TERMINAL, browsing

TOKEN = "correct horse"
DEADLINE_S = 60.0
READ = ("--node", "hgx-h100-8", "--fault", "pcie-width-x8@5")


def address(text: str) -> ListenAddress:
    return listen_address(text, "--serve", DEFAULT_ADDRESS)


class Served:
    """A server that runs: its address, its process, and a client without cookies that follows no redirect."""

    def __init__(self, url: str, process: asyncio.subprocess.Process, client: aiohttp.ClientSession) -> None:
        self.url = url
        self.process = process
        self.client = client

    async def get(self, path: str = "", **options: object) -> tuple[int, str, dict[str, str]]:
        """(status, body, headers)."""
        async with self.client.get(self.url + path, allow_redirects=False, **options) as answer:
            return answer.status, await answer.text(errors="replace"), dict(answer.headers)

    def websocket(self, **headers: str) -> aiohttp.client._WSRequestContextManager:
        url = self.url.replace("http", "ws", 1) + "ws?width=120&height=36"
        return self.client.ws_connect(url, headers=headers)

    def children(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []


@asynccontextmanager
async def serving(*options: str, token: str | None = None, at: str = "127.0.0.1:0") -> AsyncIterator[Served]:
    """`gpudoctor tui --serve` as a user starts it, on a free port; ended by SIGTERM where it still runs."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environ.pop("GPUDOCTOR_SERVE_TOKEN", None)
    if token is not None:
        environ["GPUDOCTOR_SERVE_TOKEN"] = token
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpudoctor", "tui", "--serve", at, *READ, *options),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environ,
    )
    assert process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stderr.readline(), DEADLINE_S)).decode()
        found = re.search(r"http://\S+/", line)
        assert found, line
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client:
            yield Served(found[0], process, client)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), DEADLINE_S)


async def refused(served: Served, **headers: str) -> int:
    """The status with which the websocket is refused; 101 where it is not."""
    try:
        async with served.websocket(**headers):
            return 101
    except WSServerHandshakeError as error:
        return error.status


async def test_only_the_token_opens_the_page_and_a_cookie_that_no_script_can_read_keeps_it_open() -> None:
    async with serving(token=TOKEN) as served:
        # without the token nothing is served
        for path in ("", "ws", "static/js/textual.js", "page.css", "nothing", "?token=wrong", "?token="):
            status, text, headers = await served.get(path)
            assert (status, text.count("\n")) == (401, 1)
            assert headers["WWW-Authenticate"] == "Bearer"
            assert "Set-Cookie" not in headers
        assert await refused(served) == 401
        assert await refused(served, Authorization="Bearer wrong") == 401
        assert await refused(served, Cookie=f"gpudoctor-{urlsplit(served.url).port}={TOKEN}") == 401
        assert served.children() == []
        # with it, the page and all that the page needs
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        status, page, headers = await served.get(headers=bearer)
        assert status == 200
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert f"ws://127.0.0.1:{urlsplit(served.url).port}/ws" in page
        wanted = re.findall(r'(?:href|src)="(/[^"]+)"', page)
        assert len(wanted) >= 4
        for path in wanted:
            assert (await served.get(path[1:], headers=bearer))[0] == 200
        # given once, it becomes a cookie
        status, page, headers = await served.get(f"?token={TOKEN}")
        assert status == 200
        assert TOKEN not in page
        cookie, *rules = (part.strip() for part in headers["Set-Cookie"].split(";"))
        assert {"HttpOnly", "SameSite=Strict"} <= set(rules)
        assert TOKEN not in cookie
        assert (await served.get(headers={"Cookie": cookie}))[0] == 200
        assert await refused(served, Cookie=cookie) == 101


@pytest.mark.wide
async def test_pages_of_others_get_nothing_even_on_loopback() -> None:
    async with serving() as served:
        port = urlsplit(served.url).port
        assert (await served.get())[0] == 200
        assert (await served.get(headers={"Host": f"localhost:{port}"}))[0] == 200
        # a name of the internet that was pointed here
        assert (await served.get(headers={"Host": f"rebound.example:{port}"}))[0] == 403
        assert await refused(served, Origin=f"http://127.0.0.1:{port}") == 101
        for origin in ("http://evil.example", "null", f"http://127.0.0.1:{port}.evil.example"):
            assert await refused(served, Origin=origin) == 403
        for path in ("download/x", "static/", "../serve.py", "static/..%2f..%2fserver.py"):
            assert (await served.get(path))[0] in (403, 404)


@pytest.mark.wide
async def test_the_app_behind_a_browser_is_read_only_and_ends_with_it() -> None:
    async with serving(token=TOKEN) as served:
        async with served.websocket(Authorization=f"Bearer {TOKEN}") as browser:
            seen = b""
            while b"READ-ONLY" not in seen:
                message = await asyncio.wait_for(browser.receive(), DEADLINE_S)
                assert message.type is aiohttp.WSMsgType.BINARY, message
                seen += message.data
            apps = [p for p in served.children() if "--read-only" in p.cmdline()]
            assert len(apps) == 1
            assert "GPUDOCTOR_SERVE_TOKEN" not in apps[0].environ()
            for nonsense in ("[", "[]", '{"a": 1}', '["resize", {"width": "x"}]', '["stdin", 5]', '["quit"]'):
                await browser.send_str(nonsense)
            await browser.send_json(["ping", "7"])
            while (message := await asyncio.wait_for(browser.receive(), DEADLINE_S)).type is aiohttp.WSMsgType.BINARY:
                pass
            assert message.json() == ["pong", "7"]
            family = served.children()
        gone, alive = await asyncio.to_thread(psutil.wait_procs, family, DEADLINE_S)
        assert (len(gone), alive) == (len(family), [])


@pytest.mark.wide(but=["15"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_no_app_outlives_the_server_however_it_ends(number: signal.Signals) -> None:
    async with serving() as served, served.websocket() as browser:
        seen = b""
        while b"SIMULATED" not in seen:  # its own child tells it that
            seen += (await asyncio.wait_for(browser.receive(), DEADLINE_S)).data
        family = served.children()
        assert len(family) >= 2
        served.process.send_signal(number)
        code = await asyncio.wait_for(served.process.wait(), DEADLINE_S)
        assert code == (-number if number == signal.SIGKILL else 128 + number)
        _, alive = await asyncio.to_thread(psutil.wait_procs, family, DEADLINE_S)
        assert alive == []
        while (await asyncio.wait_for(browser.receive(), DEADLINE_S)).type is not aiohttp.WSMsgType.CLOSED:
            pass


@pytest.mark.wide
@needs("chromium")
async def test_real_chromium_shows_the_screen_and_asks_nobody_else(tmp_path: Path) -> None:
    path = str(find("chromium"))

    async with serving(token=TOKEN) as served, browsing(path, tmp_path / "profile") as page:
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=CATCH_TERMINAL)
        await page.open(served.url)
        assert "a token is wanted" in await page.evaluate("document.body.innerText")
        await page.open(f"{served.url}?token={TOKEN.replace(' ', '%20')}", until="/static/js/textual.js")
        text = await page.screen_with("H100")
        assert "READ-ONLY" in text
        assert "SIMULATED" in text
        # a key goes the whole way to the app, which answers on the screen; and no check starts
        await page.type("R")
        assert "no check can be started from it" in " ".join((await page.screen_with("read-only:")).split())
        assert TOKEN not in await page.evaluate("location.href")
        assert await page.evaluate("document.cookie") == ""
        hosts = {urlsplit(url).netloc for url in page.requests if not url.startswith("data:")}
        assert hosts == {urlsplit(served.url).netloc}


def test_other_addresses_than_loopback_want_a_token() -> None:
    for text in ("0.0.0.0:9000", "[::]:9000", "10.0.0.3:80"):
        with pytest.raises(UserError, match="--serve-token"):
            token_of(None, {}, address(text))
        assert token_of(None, {"GPUDOCTOR_SERVE_TOKEN": TOKEN}, address(text)) == TOKEN
        assert token_of("given here", {"GPUDOCTOR_SERVE_TOKEN": TOKEN}, address(text)) == "given here"
    for text in ("127.0.0.1:9000", "localhost:9000", "[::1]:9000", ":9000", "9000", "127.8.8.8"):
        assert token_of(None, {}, address(text)) is None
    for short in ("", "1234567"):
        with pytest.raises(UserError, match="at least 8"):
            token_of(short, {}, address("9000"))


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("0", "127.0.0.1", 0),
        (":81", "127.0.0.1", 81),
        ("localhost", "localhost", 8080),
        ("[::1]", "::1", 8080),
        ("[::1]:82", "::1", 82),
        ("node-7.cluster:83", "node-7.cluster", 83),
    ],
)
def test_an_address_is_taken_as_people_type_it(text: str, host: str, port: int) -> None:
    assert address(text) == ListenAddress("--serve", host, port)


@pytest.mark.parametrize("text", ["127.0.0.1:99999", "127.0.0.1:", "a:b", "http://127.0.0.1:80", "x y:1", "-o:1:"])
def test_what_is_no_address_is_one_clear_line(text: str, gpudoctor: Gpudoctor) -> None:
    assert_refused(gpudoctor("tui", f"--serve={text}"), "HOST:PORT")


def test_a_taken_port_is_one_line_that_names_it(gpudoctor: Gpudoctor) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = gpudoctor("tui", "--serve", f"127.0.0.1:{port}", "--node", "hgx-h100-8")
    assert_refused(done, f"127.0.0.1:{port}")


def test_what_cannot_be_read_or_goes_without_serve_is_an_error_at_once(gpudoctor: Gpudoctor) -> None:
    assert_refused(gpudoctor("tui", "--serve", "127.0.0.1:0", "--node", "no-such-node"), "no-such-node")
    assert "goes with --serve" in gpudoctor("tui", "--serve-token", TOKEN).err


def test_without_textual_serve_the_line_says_what_to_install(
    gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "textual_serve", None)
    monkeypatch.delitem(sys.modules, "gpudoctor.tui.web.serve", raising=False)
    done = gpudoctor("tui", "--serve", "--node", "hgx-h100-8")
    assert_refused(done, "pip install 'textual-serve>=1.1.3,<2'")


def test_the_gate_compares_whole_tokens_and_secrets_only() -> None:
    gate = BrowserAccess(TOKEN)
    assert gate.knows(authorization=f"Bearer {TOKEN}", cookie=None)
    assert gate.knows(authorization=None, cookie=gate.secret)
    for authorization in (None, TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer", "Bearer \udcff"):
        assert not gate.knows(authorization=authorization, cookie="")
    assert not gate.knows(authorization=None, cookie=BrowserAccess(TOKEN).secret)
    # with a token the name does not matter: a browser brings no cookie to a name that is not ours
    assert gate.refusal("node7:9000", None) is None
    assert gate.refusal("node7:9000", "http://other:9000") is not None
    assert BrowserAccess(None).refusal("", None) is not None
