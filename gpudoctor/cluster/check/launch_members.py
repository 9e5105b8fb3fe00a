"""`gpudoctor cluster check`: starts one member on each node through an engine, and coordinates them."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from gpudoctor.cluster.check.channel import new_secret
from gpudoctor.cluster.check.coordinator import Coordinator, could_not, silence_s
from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.job_token import TOKEN_VARIABLE, given_token, token_pipe
from gpudoctor.cluster.check.launcher_commands import MemberLaunch, chosen_launcher, in_engine, launch_with
from gpudoctor.cluster.check.rank import end_child, run_rank
from gpudoctor.cluster.check.request import ClusterCheckRequest, ClusterOutput
from gpudoctor.errors import UserError
from gpudoctor.facts.system.network_reach import own_addresses
from gpudoctor.process.die_with_parent import dependent_program, dependent_python
from gpudoctor.process.own_program import own_gpudoctor
from gpudoctor.process.pipes import LineReader
from gpudoctor.process.spawn import PIPE, Child

_RAY_LIMIT_S = 60.0
_LAUNCHER_END_S = 15.0
_WORDS_BYTES = 1 << 14
_WORDS_MAX = 300
_LETTERS_MIN = 5
_TROUBLE = re.compile(
    "error|not resolve|cannot|could not|unable|not found|refused|denied|invalid|no such", re.IGNORECASE
)


def run_cluster_check(request: ClusterCheckRequest, output: ClusterOutput) -> int:
    """Check every node of the job and return the exit code. Inside an engine's job step, act as one of its ranks."""
    if request.launcher == "auto" and in_engine(os.environ):
        return run_rank(request, output)
    launcher = request.launcher
    try:
        launcher = chosen_launcher(request, os.environ)
        launch = launch_with(launcher, request, os.environ)
        coordinator = Coordinator(request, launcher, output)
        token = given_token(request, os.environ) or new_secret()
        hub = Hub(token, silence_s=silence_s(request))
        try:
            with tempfile.TemporaryFile() as words, _started(launch, request, hub, token, words) as process:
                count, names = launch.count, launch.names
                if launcher == "ray":
                    names = _ray_nodes(process, words)
                    count = len(names)
                return coordinator.run(
                    hub, count, names, lambda: process.poll() is not None, lambda: _last_words(words, process)
                )
        finally:
            hub.close()
    except UserError as error:
        return could_not(request, launcher, str(error), output)


@contextmanager
def _started(
    launch: MemberLaunch, request: ClusterCheckRequest, hub: Hub, token: str, words: IO[bytes]
) -> Iterator[Child]:
    """Start the launcher, and through it all members; end it on leaving."""
    # members try the hub's addresses in this order; loopback is for members on this machine
    join = ",".join(f"{address}/{hub.port}" for address in [*own_addresses(), "127.0.0.1"])
    numbered = ["--numbered", launch.launcher] if launch.launcher in ("slurm", "mpi") else []
    rank = ["cluster", "rank", "--join", join, *numbered, *request.words_for_members()]
    with token_pipe(token) as token_fd:
        if launch.launcher == "ray":
            order = json.dumps([rank, token_fd, request.nodes])
            command = dependent_python("gpudoctor.cluster.check.ray_tasks", "begin", order, sent=signal.SIGTERM)
            environment = dict(os.environ)
        else:
            command = dependent_program([*launch.prefix, *own_gpudoctor(elsewhere=True), *rank])
            # srun and mpirun pass the variable on in their own messages, which munge or ssh protects
            environment = {**os.environ, TOKEN_VARIABLE: token}
        try:
            process = Child(
                command,
                stdout=PIPE if launch.launcher == "ray" else words,
                stderr=words,
                env=environment,
                pass_fds=(token_fd,) if launch.launcher == "ray" else (),
            )
        except OSError as error:
            raise UserError(f"{launch.launcher}: cannot be started: {error.strerror or error}") from None
    try:
        yield process
    finally:
        hub.close()  # the members end on this, and the launcher with the last of them
        end_child(process, _LAUNCHER_END_S)
        process.close()


def _ray_nodes(process: Child, words: IO[bytes]) -> tuple[str, ...]:
    """The names of Ray's nodes. Raise UserError if Ray does not answer or has no node."""
    line = LineReader(process.stdout).one(_RAY_LIMIT_S)
    if line is None:
        said = _last_words(words, process) or f"no answer within {_RAY_LIMIT_S:g} s"
        raise UserError(f"Ray did not tell its nodes ({said}); is RAY_ADDRESS the address of a running cluster?")
    names = tuple(str(name) for name in json.loads(line))
    if not names:
        raise UserError("Ray has no node that is alive")
    return names


def _last_words(words: IO[bytes], process: Child) -> str | None:
    """The first line of the launcher's output that looks like an error, else the last line with words."""
    words.seek(0)
    lines = words.read(_WORDS_BYTES).decode("utf-8", "replace").splitlines()
    # not boxes, rules of dashes, or source lines in a traceback
    said = [line.strip() for line in lines if sum(map(str.isalpha, line)) >= _LETTERS_MIN and line[:4] != "    "]
    if said:
        return next(filter(_TROUBLE.search, said), said[-1])[:_WORDS_MAX]
    code = process.poll()
    return None if code is None else f"it ended with code {code}"
