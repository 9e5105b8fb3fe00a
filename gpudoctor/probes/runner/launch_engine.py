"""Detects whether a launch engine (torchrun, mpirun, srun) started this process as one of several on this node.

Only variables that an engine sets in each of its processes count. A RANK left over in a shell does not, nor does
the batch step of a Slurm job, which has a SLURM_PROCID but is a single process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from gpudoctor.lazy import lazy_pattern

Engine = Literal["torchrun", "mpirun", "srun"]

MAX_RANKS = 64  # limit for --ranks
_MAX_RANKS = 1024  # far more than a node has GPUs; a larger number is not a process count
SLURM_SPECIAL_STEPS = 0xFFFF0000  # step ids from here on mean batch, interactive, extern
_SLURM_COUNT = lazy_pattern(r"(\d+)(?:\(x(\d+)\))?")


class LocalPlacement(msgspec.Struct, frozen=True):
    """One process of an engine: number `rank` of `ranks` on this node; `job` identifies the launch."""

    engine: Engine
    rank: int
    ranks: int
    job: str


def local_placement(environment: Mapping[str, str]) -> LocalPlacement | None:
    """The placement of this process by a launch engine; None without an engine, or if it is alone on its node.

    One process per node is how a check of every node is started; such a process starts its own ranks.
    The innermost engine counts: torchrun under srun, mpirun in a Slurm job.
    """
    found = _torchrun(environment) or _mpirun(environment) or _srun(environment)
    return found if found is not None and 0 <= found.rank < found.ranks and 1 < found.ranks <= _MAX_RANKS else None


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
    """Slurm's task counts, node by node; empty if the text is malformed.

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
    """The number in a text, such as an engine's variable; None if it is not a number of at most 10 digits."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 10 else None
