"""Who may see the served screen: the token, and what a browser says of itself."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

from gpudoctor.errors import UserError
from gpudoctor.exits import printable
from gpudoctor.http.address import TOKEN_LENGTH_MIN, HttpAccess, ListenAddress, digest

DEFAULT_ADDRESS = "127.0.0.1:8080"
TOKEN_VARIABLE = "GPUDOCTOR_SERVE_TOKEN"


def token_of(given: str | None, environ: Mapping[str, str], where: ListenAddress) -> str | None:
    """The token that is wanted of a browser; None if none is. Raise UserError if one is needed and missing."""
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
    """What a browser adds: it asks from a page of ours only, and one that gave the token keeps a secret.

    The secret is this server's, for as long as it runs.
    """

    def __init__(self, token: str | None, listens_on: str | None = None) -> None:
        super().__init__(token, listens_on)
        self.secret = secrets.token_urlsafe(32)

    def refusal(self, host: str | None, origin: str | None = None) -> str | None:
        """Why a request is not for us at all, in words; `host` and `origin` are the headers."""
        refused = super().refusal(host)
        if refused is None and origin is not None and origin.partition("://")[2].lower() != (host or "").lower():
            return f"a page of {printable(origin)[:80]} may not ask this server"
        return refused

    def knows(self, authorization: str | None, cookie: str | None = None) -> bool:
        """Whether a request may be answered: no token is wanted, or it brings the token or the secret."""
        known = cookie is not None and hmac.compare_digest(digest(cookie), digest(self.secret))
        return known or super().knows(authorization)
