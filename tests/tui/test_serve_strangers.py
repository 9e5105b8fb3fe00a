"""Who has no token, and never meant to have one: crowds, silence and malformed requests before the served screen."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import ExitStack, suppress
from urllib.parse import quote, urlsplit

import psutil
import pytest

from gpudoctor.http.address import ListenAddress
from gpudoctor.http.listener import BoundedListener
from tests.tui.test_serve import DEADLINE_S, TOKEN, Served, serving


def connected(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", urlsplit(served.url).port or 0), DEADLINE_S)


async def hung_up_on(client: socket.socket) -> bool:
    """Whether the server closes it, without a word."""
    with suppress(ConnectionError):
        return await asyncio.to_thread(client.recv, 1) == b""
    return True


@pytest.mark.wide
async def test_malformed_hosts_are_400_and_a_crowd_of_half_open_connections_keeps_nobody_out_and_fills_no_log() -> None:
    """380 of them took the server down, and wrote 91 MB of tracebacks, before any token was asked for."""

    async with serving(token=TOKEN) as served:
        # with the right token too
        for host in ("[", "a b", "x:y", "x:99999", "", "[::1", "x/y", "node7:9000, other"):
            for path in ("/", f"/?token={quote(TOKEN)}", "/ws"):
                head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
                with connected(served) as client:
                    client.sendall(head.encode("latin-1"))
                    answer = await asyncio.to_thread(client.recv, 4096)
                assert answer.startswith(b"HTTP/1.1 400 "), (host, answer[:200])
        with ExitStack() as crowd:
            clients = [crowd.enter_context(connected(served)) for _ in range(380)]
            for client in clients[::2]:
                with suppress(OSError):  # dropped already
                    client.sendall(b"GET / HTTP/1.1\r\nHost:")
            assert (await served.get(headers={"Authorization": f"Bearer {TOKEN}"}))[0] == 200
            assert psutil.Process(served.process.pid).num_fds() < 120
            assert [await hung_up_on(client) for client in clients[:300]] == [True] * 300
        served.process.send_signal(signal.SIGTERM)
        assert served.process.stderr is not None
        said = await asyncio.wait_for(served.process.stderr.read(), DEADLINE_S)
        assert said.count(b"\n") <= 3, said[:2000]


class Kept(asyncio.Protocol):
    """A connection that does nothing; `made` says when it is there."""

    def __init__(self, made: asyncio.Queue[asyncio.BaseTransport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.put_nowait(transport)


async def test_who_asks_for_nothing_is_hung_up_on_and_who_asked_is_kept() -> None:
    made: asyncio.Queue[asyncio.BaseTransport] = asyncio.Queue()
    listener = BoundedListener(2, 0.2, until_heard=True)
    (bound,) = ListenAddress("--serve", "127.0.0.1", 0).listening_sockets()
    listens = asyncio.create_task(listener.listen(bound, lambda: Kept(made)))

    async def come(clients: ExitStack) -> socket.socket:
        return clients.enter_context(await asyncio.to_thread(socket.create_connection, bound.getsockname(), 30))

    async def asked(clients: ExitStack) -> asyncio.BaseTransport:
        await come(clients)
        transport = await made.get()
        await asyncio.sleep(0)  # the listener learns of it after the protocol
        listener.heard(transport)
        return transport

    with bound, ExitStack() as clients:
        first = await asked(clients)
        assert await hung_up_on(await come(clients)), "it asked for nothing"
        await made.get()
        second = await asked(clients)
        assert await hung_up_on(await come(clients)), "there is room for two"
        assert not first.is_closing()
        assert not second.is_closing()
        listens.cancel()
        first.close()
        second.close()
        await asyncio.sleep(0)
