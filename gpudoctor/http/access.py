"""Who may ask a server of ours: the token, and what a request says of the name it asks for."""

from __future__ import annotations

import hashlib
import hmac
import re
from urllib.parse import urlsplit

from gpudoctor.exits import printable
from gpudoctor.http.address import is_loopback

TOKEN_LENGTH_MIN = 8


class HttpAccess:
    """Decides on each request before anything of it is answered.

    Without a token only names of this machine's loopback may be asked for (and `listens_on`, the one
    listened on), so that no page on the internet can point its own name here (DNS rebinding).
    """

    def __init__(self, token: str | None, listens_on: str | None = None) -> None:
        self._token = None if token is None else digest(token)
        self._listens_on = None if listens_on is None else listens_on.lower()

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
        """Whether the Authorization header brings the token, or none is wanted."""
        kind, _, given = (authorization or "").partition(" ")
        return not self.wants_token or (kind.lower() == "bearer" and self.is_token(given.strip()))

    def is_token(self, given: str) -> bool:
        """Compared in a time that does not depend on how much of it is right."""
        return self._token is not None and hmac.compare_digest(digest(given), self._token)


def host_of_header(header: str) -> str:
    """The host that a Host header names, in lower case and without its port; empty if it names none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def is_host(header: str) -> bool:
    """Whether a Host header is HOST or HOST:PORT, as a client that was not made to break something sends it."""
    try:
        parts = urlsplit(f"//{header}")
        return bool(re.fullmatch(r"[A-Za-z0-9._:%\[\]-]{1,255}", header)) and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def digest(text: str) -> bytes:
    """What is compared in place of a token, so that neither its length nor its letters show in the time taken."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
