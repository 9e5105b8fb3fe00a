"""Which processes use the GPUs according to the state, and which checks put load on them."""

from __future__ import annotations

from collections.abc import Sequence

from gpudoctor.checks.core.registry import LEVELS, Level, select
from gpudoctor.checks.gpu.in_use import use_of
from gpudoctor.errors import UserError
from gpudoctor.exits import printable
from gpudoctor.facts.model.gpu import GpuProcess
from gpudoctor.facts.model.missing import NOT_READ, Missing, known
from gpudoctor.load.measure import puts_load as checks_put_load
from gpudoctor.plugins import all_checks
from gpudoctor.tui.state import State

SHOWN_MAX = 8


def puts_load(words: Sequence[str], level: Level) -> bool:
    """Whether a run of these checks (empty: all) at this level starts ranks."""
    if LEVELS.index(level) < LEVELS.index("standard"):
        return False
    try:
        return checks_put_load(select(all_checks(), words), level)
    except UserError:  # a check of a plugin that only the remote machine has
        return True


def users_of_gpus(state: State) -> tuple[str, ...]:
    """One line for each current use of a GPU that load would disturb, by the same rule as on the command line."""
    lines = []
    for index in _gpus(state):
        readings = state.latest[index].readings if index in state.latest else {}
        use = use_of(_processes(state, index), readings.get("memory_used_mib"), readings.get("utilization_pct"))
        lines += [_line(index, known(p.name), p.pid, known(p.user)) for p in use.others]
        if use.unseen is not None:
            lines.append(f"GPU {index}: {use.unseen}")
    more = len(lines) - SHOWN_MAX
    return (*lines[:SHOWN_MAX], f"and {more} more") if more > 0 else tuple(lines)


def _gpus(state: State) -> list[int]:
    of_facts = {gpu.index for gpu in state.node.gpus} if state.node is not None else set()
    return sorted({*state.latest, *of_facts, *(p.gpu for p in state.processes or ())})


def _processes(state: State, index: int) -> tuple[GpuProcess, ...] | Missing:
    """The processes on this GPU: from the newest tick, else from the facts."""
    if state.processes is not None:
        return tuple(
            GpuProcess(
                pid=p.pid,
                name=NOT_READ if p.name is None else p.name,
                kind=p.kind,
                memory_mib=NOT_READ if p.memory_mib is None else round(p.memory_mib),
                user=NOT_READ if p.user is None else p.user,
            )
            for p in state.processes
            if p.gpu == index
        )
    gpus = state.node.gpus if state.node is not None else ()
    return next((gpu.processes for gpu in gpus if gpu.index == index), ())


def _line(gpu: int, name: str | None, pid: int, user: str | None) -> str:
    by = f" of {printable(user)}" if user else ""
    return f"GPU {gpu}: {printable(name or 'a process')}{by} (pid {pid})"
