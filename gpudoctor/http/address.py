"""Where a server listens, and who may use it: the listen address, the token, and the check of the Host header."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import socket
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpudoctor.errors import UserError
from gpudoctor.text.output import printable, say

_BACKLOG = 64
TOKEN_LENGTH_MIN = 8
TOKEN_BYTES_MAX = 4096


@dataclass(frozen=True)
class ListenAddress:
    """Where to listen, as given to a command line option; port 0 lets the system choose one."""

    option: str
    host: str
    port: int

    @cached_property
    def resolved(self) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
        """Each address of the host, without duplicates. Raise UserError if the host cannot be resolved."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"{self.option} {self.host}:{self.port}: {self.host} cannot be resolved ({why})") from None
        return list(dict.fromkeys((family, address) for family, *_, address in found))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. Raise UserError if the host cannot be resolved."""
        return all(is_loopback(address[0]) for _, address in self.resolved)

    def url(self, port: int) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/"

    def listening_sockets(self) -> list[socket.socket]:
        """A socket for each address, all on one port. Raise UserError if the address is taken or not this machine's."""
        sockets: list[socket.socket] = []
        try:
            for family, address in self.resolved:
                port = sockets[0].getsockname()[1] if sockets else self.port
                # [::] means every address, including those of IPv4
                both = address[0] == "::" and socket.has_dualstack_ipv6()
                where = (address[0], port, *address[2:])
                sockets.append(socket.create_server(where, family=family, backlog=_BACKLOG, dualstack_ipv6=both))
        except OSError as error:
            for listener in sockets:
                listener.close()
            name = self.url(self.port).removeprefix("http://").removesuffix("/")
            why = os.strerror(error.errno) if error.errno else error
            raise UserError(f"{self.option} {name}: cannot listen there: {why}") from None
        return sockets


def listen_address(text: str, option: str, default: str) -> ListenAddress:
    """Parse HOST:PORT, HOST, [IPv6]:PORT, :PORT or PORT; `default` fills in what is left out. Raise UserError.

    >>> address = listen_address("[::1]:80", "--listen", "127.0.0.1:9464")
    >>> address.host, address.port
    ('::1', 80)
    """
    default_host, _, default_port = default.rpartition(":")
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = ("", port) if port.isdecimal() else (text.strip(), default_port)
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host or default_host
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535 or not re.fullmatch(r"[A-Za-z0-9._:%-]+", host):
        raise UserError(f"{option} {printable(text)}: write it as HOST:PORT, such as {default}")
    if ":" in host and not bracketed:
        raise UserError(f"{option} {printable(text)}: an IPv6 address goes into brackets, as in [::1]:{default_port}")
    return ListenAddress(option, host, int(port))


def is_loopback(host: str) -> bool:
    """Whether the host is a loopback address or the name localhost."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1
    return (mapped or address).is_loopback


def read_token(file: Path, *, proves_us: bool = False) -> str:
    """The token in a file, with a message if every user can read the file. Raise UserError.

    `proves_us`: this process proves its identity with the token, so nobody else may be able to write the file.
    """
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            text = stream.read(TOKEN_BYTES_MAX).decode()
    except OSError as error:
        raise UserError(f"--token-file {file}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise UserError(f"--token-file {file}: it is not text") from None
    if proves_us and mode & 0o022:
        raise UserError(f"--token-file {file}: others may write to it, so it proves nothing: chmod 600 {file}")
    if mode & 0o004:
        say(f"--token-file {file}: every user of this machine can read it (chmod 600 keeps it)")
    return text.strip()


def checked_token(token: str, where: str, least: int, most: int | None = None) -> str:
    """The token if it has `least` to `most` characters, without blanks. Raise UserError, which does not show it."""
    if not re.fullmatch(r"[!-~]*", token):
        found = "a blank, or a character that is not printable ASCII"
    elif len(token) < least or (most is not None and len(token) > most):
        found = f"{len(token)} characters"
    else:
        return token
    length = f"at least {least}" if most is None else f"{least} to {most}"
    raise UserError(
        f"{where}: a token must have {length} characters without blanks, and this one has {found}; "
        "openssl rand -hex 16 makes one"
    )


class HttpAccess:
    """Decides whether a request may be answered.

    Without a token, the Host header must name this machine's loopback or `listens_on` (the host listened on), so that
    no page on the internet can reach the server through a name of its own (DNS rebinding).
    """

    def __init__(self, token: str | None, listens_on: str | None = None) -> None:
        self._token = None if token is None else digest(token)
        self._listens_on = None if listens_on is None else listens_on.lower()

    @property
    def wants_token(self) -> bool:
        return self._token is not None

    def refusal(self, host: str | None) -> str | None:
        """Why a request is refused by its Host header `host` (None in HTTP/1.0); None if it is not."""
        if self._token is not None or host is None:
            return None
        name = host_of_header(host)
        if name == self._listens_on or is_loopback(name):
            return None
        return f"{printable(host)[:80]} is not a name of this machine's loopback"

    def knows(self, authorization: str | None) -> bool:
        """Whether the Authorization header contains the token, or no token is needed."""
        kind, _, given = (authorization or "").partition(" ")
        return not self.wants_token or (kind.lower() == "bearer" and self.is_token(given.strip()))

    def is_token(self, given: str) -> bool:
        """Whether this is the token, compared in constant time."""
        return self._token is not None and hmac.compare_digest(digest(given), self._token)


def host_of_header(header: str) -> str:
    """The host in a Host header, in lower case and without its port; empty if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def is_host(header: str) -> bool:
    """Whether a Host header is a well-formed HOST or HOST:PORT."""
    try:
        parts = urlsplit(f"//{header}")
        return bool(re.fullmatch(r"[A-Za-z0-9._:%\[\]-]{1,255}", header)) and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def digest(text: str) -> bytes:
    """The digest that is compared instead of the token, so that timing reveals neither its length nor its content."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
