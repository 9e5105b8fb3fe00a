"""The secret by which the processes of one job know each other: where it comes from, and when none is good enough."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, MutableMapping

from gpudoctor.cluster.check.channel import new_secret
from gpudoctor.cluster.check.placement import JobPlacement
from gpudoctor.cluster.check.request import ClusterCheckRequest
from gpudoctor.errors import UserError
from gpudoctor.exits import printable
from gpudoctor.http.address import TOKEN_BYTES_MAX, is_loopback, read_token
from gpudoctor.process.pipes import write_all

TOKEN_VARIABLE = "GPUDOCTOR_CLUSTER_TOKEN"
# 64 bits where it is random: it can be tried out offline by who has seen one connection
_LENGTH_MIN = 16
_LENGTH_MAX = 1024  # all of it has to fit into a pipe that nobody reads yet
_ADVICE = "openssl rand -hex 16 makes one"


def given_token(request: ClusterCheckRequest, environ: MutableMapping[str, str]) -> str | None:
    """The token that this process was given: by an inherited pipe, by --token-file, else by the environment.

    It is taken out of the environment, so that no process that this one starts inherits it. Raise
    UserError where it cannot be read, or is too short to be a secret.
    """
    variable = environ.pop(TOKEN_VARIABLE, None)
    if request.token_fd is not None:
        return _checked(_from_pipe(request.token_fd), "the inherited pipe")
    if request.token_file is not None:
        return _checked(read_token(request.token_file, proves_us=True), f"--token-file {request.token_file}")
    return _checked(variable, TOKEN_VARIABLE) if variable else None


def token_for(place: JobPlacement, given: str | None, *, insecure: bool) -> str:
    """The token of the job that an engine started; made, or derived from the job's name, where nobody gave one.

    On a single node the process that leads hands it to its only member, so it is random. Else who knows the name of
    the job can derive it too. That keeps jobs on one machine apart and no more, so it is refused where they meet over
    a network, if not `insecure`. Raise UserError.
    """
    if given is not None:
        return given
    if place.nodes == 1:
        return new_secret()
    if not insecure and not meets_on_loopback(place):
        raise UserError(
            f"this job has no token, and anybody who reaches {place.host or 'its first node'} could pose as one of its "
            f"nodes: export {TOKEN_VARIABLE}, the same on all nodes ({_ADVICE}), or --token-file FILE, "
            "or --insecure if nobody else is on that network"
        )
    return hashlib.sha256(f"gpudoctor/{place.job}".encode()).hexdigest()


def meets_on_loopback(place: JobPlacement) -> bool:
    """Whether all of the job is on this machine, and meets where nobody else can come."""
    return place.nodes == 1 or (place.host is not None and is_loopback(place.host))


@contextlib.contextmanager
def token_pipe(token: str) -> Iterator[int]:
    """The reading end of a pipe that holds the token, for a child to inherit (`--token-fd`)."""
    reader, writer = os.pipe()
    try:
        write_all(writer, token.encode())
    finally:
        os.close(writer)
    try:
        yield reader
    finally:
        os.close(reader)


def _checked(token: str, where: str) -> str:
    if not re.fullmatch(rf"[!-~]{{{_LENGTH_MIN},{_LENGTH_MAX}}}", token):
        raise UserError(
            f"{printable(where)}: a token of at least {_LENGTH_MIN} characters, and {_LENGTH_MAX} at most, is wanted, "
            f"without blanks ({_ADVICE})"
        )
    return token


def _from_pipe(fd: int) -> str:
    try:
        with os.fdopen(fd, "rb") as stream:
            return stream.read(TOKEN_BYTES_MAX).decode("ascii")
    except (OSError, ValueError) as error:
        raise UserError(f"--token-fd {fd}: no token came ({getattr(error, 'strerror', None) or error})") from None
