"""Where the agent listens, and who may ask: the address, the token, and what a request says of itself."""

from __future__ import annotations

import hmac
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gpudoctor.agent import DEFAULT_LISTEN
from gpudoctor.errors import UserError
from gpudoctor.exits import printable, say
from gpudoctor.http_callers import digest, host_of_header, is_loopback

TOKEN_VARIABLE = "GPUDOCTOR_AGENT_TOKEN"
TOKEN_LENGTH_MIN = 8
TOKEN_BYTES_MAX = 4096
_BACKLOG = 64


class ListenAddress(NamedTuple):
    """Where to listen, as typed and as the system resolves it; port 0 lets the system choose one."""

    host: str
    port: int
    family: socket.AddressFamily
    resolved: tuple[str, int] | tuple[str, int, int, int]

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.resolved[0])


def address_of(text: str) -> ListenAddress:
    """HOST:PORT, [IPv6]:PORT, :PORT or PORT as typed. Raise UserError where it is none, or cannot be resolved."""
    default_host, _, default_port = DEFAULT_LISTEN.rpartition(":")
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = ("", port) if port.isdecimal() else (text.strip(), default_port)
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host or default_host
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535 or not re.fullmatch(r"[A-Za-z0-9._:%-]+", host):
        raise _no_address(text)
    if ":" in host and not bracketed:
        raise UserError(f"--listen {printable(text)}: an IPv6 address goes into brackets, as in [::1]:9464")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--listen {printable(text)}: {host} cannot be resolved ({why})") from None
    family, *_, resolved = found[0]
    return ListenAddress(host, int(port), family, resolved)  # type: ignore[arg-type]


def _no_address(text: str) -> UserError:
    return UserError(f"--listen {printable(text)}: write it as HOST:PORT, such as {DEFAULT_LISTEN}")


def listening_socket(where: ListenAddress) -> socket.socket:
    """The bound socket. Raise UserError where the address is taken, not this machine's, or not allowed."""
    listener = socket.socket(where.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if where.family == socket.AF_INET6 and where.resolved[0] == "::":
            # every address, those of IPv4 too, as people who type [::] mean it
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(where.resolved)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        name = url_of(where.host, where.port).removeprefix("http://").removesuffix("/")
        raise UserError(f"--listen {name}: cannot listen there: {error.strerror or error}") from None
    return listener


def url_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def token_of(file: Path | None, environ: Mapping[str, str], where: ListenAddress) -> str | None:
    """The token that is wanted of who asks; None where none is. Raise UserError where one is needed and missing."""
    token = environ.get(TOKEN_VARIABLE) or None if file is None else _read_token(file)
    name = TOKEN_VARIABLE if file is None else f"--token-file {file}"
    if token is None:
        if where.is_loopback:
            return None
        raise UserError(
            f"--listen {printable(where.host)}: others can reach it, so it wants a token: --token-file FILE, "
            f"or {TOKEN_VARIABLE} in the environment"
        )
    if not re.fullmatch(rf"[!-~]{{{TOKEN_LENGTH_MIN},}}", token):
        raise UserError(
            f"{name}: a token of at least {TOKEN_LENGTH_MIN} characters is wanted, without blanks, "
            "such as openssl rand -hex 16 gives"
        )
    return token


def _read_token(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            text = stream.read(TOKEN_BYTES_MAX).decode()
            if os.fstat(stream.fileno()).st_mode & 0o004:
                say(f"--token-file {file}: every user of this machine can read it (chmod 600 keeps it)")
    except OSError as error:
        raise UserError(f"--token-file {file}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise UserError(f"--token-file {file}: it is not text") from None
    return text.strip()


class AgentAccess:
    """Decides on each request before anything of it is answered.

    Without a token only names of this machine's loopback may be asked for (and the one listened on),
    so that no page on the internet can point its own name here (DNS rebinding).
    """

    def __init__(self, token: str | None, listens_on: str) -> None:
        self._token = None if token is None else digest(token)
        self._listens_on = listens_on.lower()

    @property
    def wants_token(self) -> bool:
        return self._token is not None

    def refusal(self, host: str | None) -> str | None:
        """Why a request is not for us at all, in words; `host` is its Host header (HTTP/1.0 may have none)."""
        if self._token is not None or host is None:
            return None
        name = host_of_header(host)
        if name == self._listens_on or is_loopback(name):
            return None
        return f"{printable(host)[:80]} is not a name of this machine's loopback"

    def knows(self, authorization: str | None) -> bool:
        """Whether the token is there, or none is wanted; compared in a time that does not depend on its letters."""
        if self._token is None:
            return True
        kind, _, given = (authorization or "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(digest(given.strip()), self._token)
