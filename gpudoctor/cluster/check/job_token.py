"""The token by which the processes of one job authenticate each other: where it comes from, and when it is needed."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, MutableMapping

from gpudoctor.cluster.check.channel import new_secret
from gpudoctor.cluster.check.placement import JobPlacement
from gpudoctor.cluster.check.request import ClusterCheckRequest
from gpudoctor.errors import UserError
from gpudoctor.exits import printable
from gpudoctor.http.address import TOKEN_BYTES_MAX, checked_token, is_loopback, read_token
from gpudoctor.process.pipes import write_all

TOKEN_VARIABLE = "GPUDOCTOR_CLUSTER_TOKEN"
# 64 bits if it is random hexadecimal: whoever has recorded a connection can try tokens offline
_LENGTH_MIN = 16
_LENGTH_MAX = 1024  # the whole token must fit into a pipe that has no reader yet


def given_token(request: ClusterCheckRequest, environ: MutableMapping[str, str]) -> str | None:
    """The token given to this process: by an inherited pipe, else by --token-file, else by the environment.

    It is removed from `environ`, so that no child process inherits it. Raise UserError if it cannot be read or is too
    short to be a secret.
    """
    variable = environ.pop(TOKEN_VARIABLE, None)
    if request.token_fd is not None:
        token, where = _from_pipe(request.token_fd), "the inherited pipe"
    elif request.token_file is not None:
        token, where = read_token(request.token_file, proves_us=True), printable(f"--token-file {request.token_file}")
    elif variable:
        token, where = variable, TOKEN_VARIABLE
    else:
        return None
    return checked_token(token, where, _LENGTH_MIN, _LENGTH_MAX)


def token_for(placement: JobPlacement, given: str | None, *, insecure: bool) -> str:
    """The token of a job that an engine started: the given one, else a random or derived one.

    On a single node it is random, since the first process passes it to its only member. Otherwise it is derived from
    the job's name, which anybody who knows the name can do too: that only keeps jobs on one machine apart. So over a
    network it is refused unless `insecure`. Raise UserError.
    """
    if given is not None:
        return given
    if placement.nodes == 1:
        return new_secret()
    if not insecure and not meets_on_loopback(placement):
        raise UserError(
            f"this job has no token, and anybody who reaches {placement.host or 'its first node'} could pose as one of "
            f"its nodes: export {TOKEN_VARIABLE}, the same on all nodes (openssl rand -hex 16 makes one), "
            "or --token-file FILE, or --insecure if nobody else is on that network"
        )
    return hashlib.sha256(f"gpudoctor/{placement.job}".encode()).hexdigest()


def meets_on_loopback(placement: JobPlacement) -> bool:
    """Whether the whole job is on this machine, so that its processes can meet on loopback."""
    return placement.nodes == 1 or (placement.host is not None and is_loopback(placement.host))


@contextlib.contextmanager
def token_pipe(token: str) -> Iterator[int]:
    """The read end of a pipe that contains the token, for a child to inherit (`--token-fd`)."""
    reader, writer = os.pipe()
    try:
        write_all(writer, token.encode())
    finally:
        os.close(writer)
    try:
        yield reader
    finally:
        os.close(reader)


def _from_pipe(fd: int) -> str:
    try:
        with os.fdopen(fd, "rb") as stream:
            return stream.read(TOKEN_BYTES_MAX).decode("ascii")
    except (OSError, ValueError) as error:
        raise UserError(f"--token-fd {fd}: no token came ({getattr(error, 'strerror', None) or error})") from None
