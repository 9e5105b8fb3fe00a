"""The rendezvous address of jobs on several nodes: a loopback address cannot work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Advice, Finding, Status, fail
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.env.settings import shown
from gpudoctor.facts.model.node import Environment, Variable
from gpudoctor.facts.model.sagemaker import sagemaker_hosts

# loopback names and addresses: /etc/hosts and RFC 6890
_LOOPBACK = re.compile(r"localhost(?:\.localdomain)?|127(?:\.\d{1,3}){1,3}|\[?::1\]?", re.IGNORECASE)
# number of nodes of the step, then of the job: srun(1), output variables
_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
# number of all processes, and of those on this node: torchrun's and Open MPI's
_SIZES = (("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"))


def loopback_findings(case: Case) -> Iterator[Finding]:
    """A finding for a loopback MASTER_ADDR in a job of several nodes: each node would wait at its own address.

    Only a warning if nothing shows that the processes on the nodes belong to one job: an allocation may run a
    separate job on each node.
    """
    environment = case.node.environment
    address = environment.variable("MASTER_ADDR")
    if address is None or not _LOOPBACK.fullmatch(address.value.strip()):
        return
    for all_name, own_name in _SIZES:
        world, local = _number(environment, all_name), _number(environment, own_name)
        if world is not None and local is not None:
            if world > local:
                yield _elsewhere(environment, address, f"{world} processes, {local} of them here", (all_name, own_name))
            return
    nodes_name = next((name for name in _NODES if environment.get(name) is not None), None)
    nodes = _number(environment, nodes_name) if nodes_name else None
    if nodes_name is None and (hosts := sagemaker_hosts(environment.get("SM_HOSTS"))):
        nodes_name, nodes = "SM_HOSTS", len(hosts)
    world = _number(environment, "WORLD_SIZE")
    more = world is not None and world > max(len(case.gpus), 1)
    if nodes_name is not None and nodes is not None and nodes > 1:
        finding = _elsewhere(environment, address, f"a job of {nodes} nodes", (nodes_name, "WORLD_SIZE"))
        yield finding if more else msgspec.structs.replace(finding, status=Status.WARN)
    elif more and case.gpus and nodes != 1:
        text = f"a job of {world} processes, with {len(case.gpus)} GPUs here"
        finding = _elsewhere(environment, address, text, ("WORLD_SIZE",))
        yield msgspec.structs.replace(finding, status=Status.WARN)


def _elsewhere(environment: Environment, address: Variable, job: str, names: Iterable[str]) -> Finding:
    beside = [variable for name in names if (variable := environment.variable(name)) is not None]
    hosts = sagemaker_hosts(environment.get("SM_HOSTS"))
    first = hosts[0] if hosts else "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
    return fail(
        NODE,
        f"MASTER_ADDR={address.value} in {job}",
        "the name or address of the first node, which all nodes reach",
        shown(address),
        *(shown(variable) for variable in beside),
        likely="every node waits at its own address for the others: init_process_group hangs until its timeout",
        advice=(
            Advice("Name the first node.", f"export MASTER_ADDR={first}"),
            Advice(
                "Or let torchrun find it.", "torchrun --nnodes=N --rdzv-backend=c10d --rdzv-endpoint=FIRST:29500 ..."
            ),
            Advice("A job on this node alone: clear what the allocation left behind.", "unset MASTER_ADDR"),
        ),
    )


def _number(environment: Environment, name: str) -> int | None:
    """A count or rank from 0; None if the variable is unset or not such a number."""
    value = (environment.get(name) or "").strip()
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None
