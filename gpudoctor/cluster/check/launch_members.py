"""The two ways into the check of a job: `cluster rank`, which an engine started, and `cluster check`, which starts one.

An engine starts one or more processes of `cluster rank` on each node. `cluster check` has an engine start one member
on each node, and coordinates them.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import msgspec

from gpudoctor.cluster.check.coordinator import Coordinator, could_not, silence_s
from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.launcher_commands import MemberLaunch, chosen_launcher, in_engine, launch_with
from gpudoctor.cluster.check.member import HubGoneError, Member
from gpudoctor.cluster.check.messages import new_secret
from gpudoctor.cluster.check.model import ClusterCheckRequest, ClusterOutput
from gpudoctor.cluster.check.placement import (
    TOKEN_VARIABLE,
    JobPlacement,
    given_token,
    job_placement,
    meets_on_loopback,
    token_for,
    token_pipe,
)
from gpudoctor.errors import UserError
from gpudoctor.facts.system.environment import node_name
from gpudoctor.facts.system.network import own_addresses
from gpudoctor.lazy import lazy_pattern
from gpudoctor.process.die_with_parent import dependent_gpudoctor, dependent_program, dependent_python
from gpudoctor.process.exit_codes import OK, UNKNOWN
from gpudoctor.process.own_program import own_gpudoctor
from gpudoctor.process.pipes import LineReader
from gpudoctor.process.spawn import PIPE, Child
from gpudoctor.process.temporary_folder import temporary_file
from gpudoctor.text.hostlist import Hosts
from gpudoctor.text.output import say

_JOIN_S = 60.0
_OWN_END_S = 20.0
_RAY_LIMIT_S = 60.0
_LAUNCHER_END_S = 15.0
_WORDS_BYTES = 1 << 14
_WORDS_MAX = 300
_LETTERS_MIN = 5
_TROUBLE = lazy_pattern(
    "error|not resolve|cannot|could not|unable|not found|refused|denied|invalid|no such", re.IGNORECASE
)


def run_rank(request: ClusterCheckRequest, output: ClusterOutput) -> int:
    """Coordinate the check, or serve the process that does; return the exit code.

    The very first process runs the hub and writes the report: its code is the verdict. The first process of each node
    checks the node, and returns 0 if the hub led it to the end. All others have nothing to do.
    """
    placement: JobPlacement | None = None
    try:
        placement = job_placement(os.environ, request.nodes)
        given = given_token(request, os.environ)
        if request.join:
            if given is None:
                raise UserError(
                    f"--join: the job's token must come with it, and none did: {TOKEN_VARIABLE} or --token-file FILE"
                )
            # the variables of an engine that did not start this process are inherited: they number other nodes
            index = placement.node if placement is not None and placement.engine == request.numbered else None
            return _serve(request, _addresses(request.join), given, index)
        if placement is None:
            raise UserError(
                "no engine has started this process as one of several: torchrun --nnodes 2 --nproc-per-node 8 "
                "-m gpudoctor cluster rank, or srun -N2 --ntasks-per-node=1 gpudoctor cluster rank"
            )
        if placement.local != 0:
            return OK  # the node's first process starts the ranks, one per GPU
        if request.rendezvous_host is not None:
            placement = msgspec.structs.replace(placement, host=request.rendezvous_host)
        token = token_for(placement, given, insecure=request.insecure)
        if placement.leads:
            return _coordinate(request, placement, token, output, derived=given is None)
        if placement.host is None:
            raise UserError(
                f"{placement.engine} does not tell where the first process runs: give --meet HOST to all of them"
            )
        return _serve(request, [(placement.host, port) for port in placement.ports], token, placement.node)
    except UserError as error:
        if placement is not None and not placement.leads:
            raise
        return could_not(request, placement.engine if placement is not None else "none", str(error), output)


def _coordinate(
    request: ClusterCheckRequest, placement: JobPlacement, token: str, output: ClusterOutput, *, derived: bool
) -> int:
    local = derived and meets_on_loopback(placement)
    insecure = derived and not local
    if insecure:
        say("INSECURE: this job has no token; anybody on the network who knows its name could pose as one of its nodes")
    coordinator = Coordinator(request, placement.engine, output, insecure=insecure)
    hub = Hub(token, placement.ports, silence_s(request), loopback_only=local)
    # loopback comes last: the address from which the member connects is where the other nodes will reach it
    addresses = ["127.0.0.1"] if local else [*own_addresses(), "127.0.0.1"]
    join = ",".join(f"{address}/{hub.port}" for address in addresses)
    with token_pipe(token) as token_fd:
        # the member reads the engine's variables too, and some engines do not provide the number of nodes
        arguments = ["cluster", "rank", "--join", join, "--token-fd", str(token_fd), "--numbered", placement.engine]
        arguments += ["--nodes", str(placement.nodes)]
        command = dependent_gpudoctor([*arguments, *request.member_arguments()])
        member = Child(command, stderr=None, pass_fds=(token_fd,), new_session=False)
    try:
        return coordinator.run(hub, placement.nodes, (), lambda: False, lambda: None)
    finally:
        hub.close()
        end_child(member, _OWN_END_S)


def _serve(request: ClusterCheckRequest, addresses: list[tuple[str, int]], token: str, index: int | None) -> int:
    hostname = node_name()
    arguments = request.check_arguments()
    for host, fault in request.faults_of_hosts():
        if host is None or host in Hosts([hostname]):
            arguments.append(f"--fault={fault}")
    member = Member(arguments, request.ranks or 1, hostname)
    try:
        member.serve(addresses, token, index, request.deadline_s or _JOIN_S)
    except HubGoneError as error:
        say(f"the process that leads this check is gone ({error}); no verdict from here")
        return UNKNOWN
    return OK


def _addresses(text: str) -> list[tuple[str, int]]:
    entries = [entry.rpartition("/") for entry in text.split(",")]
    try:
        return [(host, int(port)) for host, _, port in entries]
    except ValueError:
        raise UserError(f"--join {text}: it must be ADDRESS/PORT, several with commas between them") from None


def end_child(process: Child, patience_s: float) -> None:
    """Wait for a child to end by itself, then end it."""
    if process.ends_within(patience_s) is None:
        process.end(patience_s, group=False)


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
            with temporary_file() as text, _started(launch, request, hub, token, text) as process:
                count, names = launch.count, launch.names
                if launcher == "ray":
                    names = _ray_nodes(process, text)
                    count = len(names)
                return coordinator.run(
                    hub, count, names, lambda: process.poll() is not None, lambda: _launcher_error(text, process)
                )
        finally:
            hub.close()
    except UserError as error:
        return could_not(request, launcher, str(error), output)


@contextmanager
def _started(
    launch: MemberLaunch, request: ClusterCheckRequest, hub: Hub, token: str, output: IO[bytes]
) -> Iterator[Child]:
    """Start the launcher, and through it all members; end it on leaving."""
    # members try the hub's addresses in this order; loopback is for members on this machine
    join = ",".join(f"{address}/{hub.port}" for address in [*own_addresses(), "127.0.0.1"])
    numbered = ["--numbered", launch.launcher] if launch.launcher in ("slurm", "mpi") else []
    rank = ["cluster", "rank", "--join", join, *numbered, *request.member_arguments()]
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
                stdout=PIPE if launch.launcher == "ray" else output,
                stderr=output,
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


def _ray_nodes(process: Child, output: IO[bytes]) -> tuple[str, ...]:
    """The names of Ray's nodes. Raise UserError if Ray does not answer or has no node."""
    line = LineReader(process.stdout).one(_RAY_LIMIT_S)
    if line is None:
        reported = _launcher_error(output, process) or f"no answer within {_RAY_LIMIT_S:g} s"
        raise UserError(f"Ray did not tell its nodes ({reported}); is RAY_ADDRESS the address of a running cluster?")
    names = tuple(str(name) for name in json.loads(line))
    if not names:
        raise UserError("Ray has no node that is alive")
    return names


def _launcher_error(output: IO[bytes], process: Child) -> str | None:
    """The launcher's output from the first line on that looks like an error, else from the first one with words."""
    output.seek(0)
    lines = output.read(_WORDS_BYTES).decode("utf-8", "replace").splitlines()
    # not boxes, rules of dashes, or source lines in a traceback
    statements = [line.strip() for line in lines if sum(map(str.isalpha, line)) >= _LETTERS_MIN and line[:4] != "    "]
    if statements:
        # Open MPI wraps its sentences
        first = next((number for number, line in enumerate(statements) if _TROUBLE.search(line)), 0)
        return " ".join(statements[first:])[:_WORDS_MAX]
    code = process.poll()
    return None if code is None else f"it ended with code {code}"
