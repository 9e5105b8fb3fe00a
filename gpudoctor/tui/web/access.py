"""Who may see the served screen: the address to serve on, the token, and what a browser says of itself."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from gpudoctor.errors import UserError
from gpudoctor.exits import printable
from gpudoctor.http_callers import digest, host_of_header, is_loopback

DEFAULT_ADDRESS = "127.0.0.1:8080"
TOKEN_VARIABLE = "GPUDOCTOR_SERVE_TOKEN"
TOKEN_LENGTH_MIN = 8
_PORT = re.compile(r"\d{1,5}")


@dataclass(frozen=True)
class ServeAddress:
    """Where to listen; port 0 lets the system choose one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def url(self, port: int) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/"


def address(text: str) -> ServeAddress:
    """HOST:PORT, HOST, :PORT or PORT as typed; what is left out is that of `DEFAULT_ADDRESS`. Raise UserError.

    >>> address("0.0.0.0:9000"), address("9000").host, address("[::1]:80").host, address("localhost").port
    (Address(host='0.0.0.0', port=9000), '127.0.0.1', '::1', 8080)
    """
    default_host, _, default_port = DEFAULT_ADDRESS.rpartition(":")
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = ("", port) if _PORT.fullmatch(text.strip()) else (text.strip(), default_port)
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host or default_host
    if not _PORT.fullmatch(port) or int(port) > 65535 or not re.fullmatch(r"[A-Za-z0-9._:%-]+", host):
        raise UserError(f"--serve {printable(text)}: write it as HOST:PORT, such as {DEFAULT_ADDRESS}")
    return ServeAddress(host, int(port))


def token_of(given: str | None, environ: Mapping[str, str], where: ServeAddress) -> str | None:
    """The token that is wanted of a browser; None where none is. Raise UserError where one is needed and missing."""
    token = given if given is not None else environ.get(TOKEN_VARIABLE) or None
    if token is None and not where.is_loopback:
        raise UserError(
            f"--serve {where.host}:{where.port}: others can reach it, so it wants --serve-token TOKEN "
            f"(or {TOKEN_VARIABLE} in the environment, which ps does not show)"
        )
    if token is not None and len(token) < TOKEN_LENGTH_MIN:
        raise UserError(f"--serve-token: at least {TOKEN_LENGTH_MIN} characters are wanted")
    return token


class ServeAccess:
    """Decides on each request before anything of it is served.

    Without a token only names of this machine may be asked for, so that no page on the internet can
    point its own name here (DNS rebinding). A browser that gave the token keeps a secret of this
    server instead, for as long as this server runs.
    """

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else digest(token)
        self.secret = secrets.token_urlsafe(32)

    def refusal(self, host: str, origin: str | None) -> str | None:
        """Why a request is not for us at all, in words; `host` and `origin` are the headers."""
        if self._token is None and not is_loopback(host_of_header(host)):
            return f"{printable(host)[:80]} is not a name of this machine's loopback"
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return f"a page of {printable(origin)[:80]} may not ask this server"
        return None

    def knows(self, *, authorization: str | None, cookie: str | None) -> bool:
        """Whether a request may be answered: no token is wanted, or it brings the token or the secret."""
        if self._token is None:
            return True
        kind, _, given = (authorization or "").partition(" ")
        bears = kind.lower() == "bearer" and self.is_token(given.strip())
        return bears or (cookie is not None and hmac.compare_digest(digest(cookie), digest(self.secret)))

    def is_token(self, given: str) -> bool:
        """Compared in a time that does not depend on how much of it is right."""
        return self._token is not None and hmac.compare_digest(digest(given), self._token)
