"""Whether an engine (torchrun, mpirun, srun) has started this process as one of several on this node.

Only what an engine sets in each of its own processes counts: a RANK that is left over in a shell,
or the batch step of a Slurm job, which has a SLURM_PROCID but is a single process, is no engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

Engine = Literal["torchrun", "mpirun", "srun"]

MAX_RANKS = 64  # that may be asked for
_MAX_RANKS = 1024  # far more than a node has GPUs; more is no number of processes
SLURM_SPECIAL_STEPS = 0xFFFF0000  # from here on the numbers mean batch, interactive, extern
_SLURM_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class LocalPlacement(msgspec.Struct, frozen=True):
    """One process of an engine: number `rank` of `ranks` on this node; `job` tells the start from all others."""

    engine: Engine
    rank: int
    ranks: int
    job: str


def place_of(environment: Mapping[str, str]) -> LocalPlacement | None:
    """Where an engine has put this process; None where none did, or where it is alone on its node.

    One process a node is how a check of each node is started: it uses ranks of its own. The
    innermost engine counts: torchrun under srun, mpirun in a Slurm job.
    """
    place = _torchrun(environment) or _mpirun(environment) or _srun(environment)
    return place if place is not None and 0 <= place.rank < place.ranks and 1 < place.ranks <= _MAX_RANKS else None


def _torchrun(environment: Mapping[str, str]) -> LocalPlacement | None:
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    marks = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
    return _place(environment, "torchrun", "LOCAL_RANK", "LOCAL_WORLD_SIZE", marks)


def _mpirun(environment: Mapping[str, str]) -> LocalPlacement | None:
    names = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    return _place(environment, "mpirun", *names, ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"))


def _srun(environment: Mapping[str, str]) -> LocalPlacement | None:
    step, node = number_of(environment.get("SLURM_STEP_ID")), number_of(environment.get("SLURM_NODEID"))
    rank = number_of(environment.get("SLURM_LOCALID"))
    if step is None or step >= SLURM_SPECIAL_STEPS or node is None or rank is None:
        return None
    counts = _tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if node >= len(counts):
        return None
    return LocalPlacement("srun", rank, counts[node], f"{environment.get('SLURM_JOB_ID')}.{step}.{node}")


def _place(
    environment: Mapping[str, str], engine: Engine, rank: str, ranks: str, marks: tuple[str, ...]
) -> LocalPlacement | None:
    number, count = number_of(environment.get(rank)), number_of(environment.get(ranks))
    if number is None or count is None:
        return None
    return LocalPlacement(engine, number, count, "/".join(environment.get(name, "") for name in marks))


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's counts, node by node.

    >>> _tasks_per_node("4(x2),3")
    [4, 4, 3]
    """
    counts: list[int] = []
    for item in text.split(","):
        found = _SLURM_COUNT.fullmatch(item)
        if found is None or len(item) > 16:
            return []
        counts += [int(found[1])] * min(int(found[2] or 1), 1 << 16)
    return counts


def number_of(text: str | None) -> int | None:
    """The number in a variable of an engine; None for what is none, or too long to be one."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 10 else None
