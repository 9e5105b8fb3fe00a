"""Harmful environment variables in text, and those of a launcher: consistent, with an address that all nodes reach."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, fail, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.facts.model.node import Environment, Variable
from gpudoctor.facts.model.sagemaker import sagemaker_hosts
from gpudoctor.lazy import lazy_pattern

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# loopback names and addresses: /etc/hosts and RFC 6890
_LOOPBACK = lazy_pattern(r"localhost(?:\.localdomain)?|127(?:\.\d{1,3}){1,3}|\[?::1\]?", re.IGNORECASE)
# number of nodes of the step, then of the job: srun(1), output variables
_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
# number of all processes, and of those on this node: torchrun's and Open MPI's
_SIZES = (("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"))


def unset(name: str) -> Advice:
    return Advice("Clear it where it is set (shell profile, image, job script, /etc/nccl.conf).", f"unset {name}")


def shown(variable: Variable) -> Evidence:
    return Evidence("environment", f"{variable.name}={variable.value}")


def bad(
    judge: Callable[..., Finding], variable: Variable, is_bad: str, expected: str, likely: str, *advice: Advice
) -> Finding:
    """The finding for a harmful setting; without other `advice` it says how to clear it."""
    text = f"{variable.name}={variable.value}{is_bad}"
    return judge(NODE, text, expected, shown(variable), likely=likely, advice=advice or (unset(variable.name),))


def launcher_findings(case: Case) -> Iterator[Finding]:
    """Check that torchrun's variables are consistent, and the address reachable; an incomplete set only warns."""
    environment = case.node.environment
    given = {name: value for name in _TORCHRUN if (value := environment.get(name)) is not None}
    evidence = tuple(Evidence("environment", f"{name}={value}") for name, value in given.items())
    advice = (
        Advice("Let the launcher set them,", "torchrun --nproc-per-node=gpu train.py"),
        Advice("and clear what a former run left behind.", f"unset {' '.join(given)}" if given else None),
    )

    def wrong(text: str, expected: str) -> Finding:
        likely = "init_process_group would fail or wait forever"
        return fail(NODE, text, expected, *evidence, likely=likely, advice=advice)

    for rank_name, size_name in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        rank, size = _number(environment, rank_name), _number(environment, size_name)
        for name, number in ((rank_name, rank), (size_name, size)):
            if number is None and name in given:
                yield wrong(f"{name}={given[name]} is not a number", "a number from 0")
        if rank is not None and size is not None and rank >= size:
            yield wrong(f"{rank_name}={rank} with {size_name}={size}", f"{rank_name} below {size_name}")
    rendezvous = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    absent = [name for name in rendezvous if name not in given]
    # MASTER_ADDR or WORLD_SIZE alone may be a site's default; RANK is only set by a launcher
    if "RANK" in given and absent and given.get("WORLD_SIZE", "").strip() != "1":
        yield warn(
            NODE,
            f"RANK is set, but not {', '.join(absent)}",
            "all four of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none",
            *evidence,
            likely="a launcher's variables came through in part: init_process_group needs all four",
            advice=advice,
        )
    yield from _loopback(case)


def _loopback(case: Case) -> Iterator[Finding]:
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
                text = f"{world} processes, {local} of them here"
                yield _elsewhere(fail, environment, address, text, (all_name, own_name))
            return
    nodes_name = next((name for name in _NODES if environment.get(name) is not None), None)
    nodes = _number(environment, nodes_name) if nodes_name else None
    if nodes_name is None and (hosts := sagemaker_hosts(environment.get("SM_HOSTS"))):
        nodes_name, nodes = "SM_HOSTS", len(hosts)
    world = _number(environment, "WORLD_SIZE")
    more = world is not None and world > max(len(case.gpus), 1)
    if nodes_name is not None and nodes is not None and nodes > 1:
        names = (nodes_name, "WORLD_SIZE")
        yield _elsewhere(fail if more else warn, environment, address, f"a job of {nodes} nodes", names)
    elif more and case.gpus and nodes != 1:
        text = f"a job of {world} processes, with {len(case.gpus)} GPUs here"
        yield _elsewhere(warn, environment, address, text, ("WORLD_SIZE",))


def _elsewhere(
    judge: Callable[..., Finding], environment: Environment, address: Variable, job: str, names: Iterable[str]
) -> Finding:
    beside = [variable for name in names if (variable := environment.variable(name)) is not None]
    hosts = sagemaker_hosts(environment.get("SM_HOSTS"))
    first = hosts[0] if hosts else "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
    return judge(
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
