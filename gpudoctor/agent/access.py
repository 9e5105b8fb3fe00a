"""The token that the agent wants of who asks: given in a file or in the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from gpudoctor.errors import UserError
from gpudoctor.exits import printable, say
from gpudoctor.http.address import TOKEN_LENGTH_MIN, ListenAddress

TOKEN_VARIABLE = "GPUDOCTOR_AGENT_TOKEN"
TOKEN_BYTES_MAX = 4096


def token_of(file: Path | None, environ: Mapping[str, str], where: ListenAddress) -> str | None:
    """The token that is wanted; None if none is. Raise UserError if one is needed and missing."""
    token = environ.get(TOKEN_VARIABLE) or None if file is None else _read_token(file)
    name = TOKEN_VARIABLE if file is None else f"--token-file {file}"
    if token is None:
        if where.is_loopback:
            return None
        raise UserError(
            f"{where.option} {printable(where.host)}: others can reach it, so it wants a token: --token-file FILE, "
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
