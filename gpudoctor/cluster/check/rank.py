"""`gpudoctor cluster rank`: one of the processes that an engine started, one or more on each node."""

from __future__ import annotations

import os

import msgspec

from gpudoctor.cluster.check.coordinator import Coordinator, could_not, silence_s
from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.job_token import TOKEN_VARIABLE, given_token, meets_on_loopback, token_for, token_pipe
from gpudoctor.cluster.check.member import HubGoneError, Member
from gpudoctor.cluster.check.placement import JobPlacement, job_placement
from gpudoctor.cluster.check.request import ClusterCheckRequest, ClusterOutput
from gpudoctor.errors import UserError
from gpudoctor.exits import OK, UNKNOWN, say
from gpudoctor.facts.system.environment import node_name
from gpudoctor.facts.system.network_reach import own_addresses
from gpudoctor.process.die_with_parent import dependent_gpudoctor
from gpudoctor.process.spawn import Child

_JOIN_S = 60.0
_OWN_END_S = 20.0


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
            return _serve(request, _addresses(request.join), given, _index(request, placement))
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
        words = ["cluster", "rank", "--join", join, "--token-fd", str(token_fd), "--numbered", placement.engine]
        words += ["--nodes", str(placement.nodes)]
        command = dependent_gpudoctor([*words, *request.words_for_members()])
        member = Child(command, stderr=None, pass_fds=(token_fd,), new_session=False)
    try:
        return coordinator.run(hub, placement.nodes, (), lambda: False, lambda: None)
    finally:
        hub.close()
        end_child(member, _OWN_END_S)


def _serve(request: ClusterCheckRequest, addresses: list[tuple[str, int]], token: str, index: int | None) -> int:
    hostname = node_name()
    member = Member(_check_words(request, hostname), request.ranks or 1, hostname)
    try:
        member.serve(addresses, token, index, request.deadline_s or _JOIN_S)
    except HubGoneError as error:
        say(f"the process that leads this check is gone ({error}); no verdict from here")
        return UNKNOWN
    return OK


def _check_words(request: ClusterCheckRequest, hostname: str) -> list[str]:
    """The arguments of this node's own check; a fault with the prefix `HOST:` is for that host only."""
    words = ["--level", request.level, "--backend", request.backend]
    for name in ("node", "profile", "config"):
        if getattr(request, name) is not None:
            words.append(f"--{name}={getattr(request, name)}")
    words += [f"--skip={word}" for word in request.skip]
    for fault in request.faults:
        host, colon, name = fault.rpartition(":")
        if not colon or host in (hostname, hostname.partition(".")[0]):
            words.append(f"--fault={name}")
    return words


def _index(request: ClusterCheckRequest, placement: JobPlacement | None) -> int | None:
    """The node's number, if the engine that started this process counts nodes: others' variables are inherited."""
    return placement.node if placement is not None and placement.engine == request.numbered else None


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
