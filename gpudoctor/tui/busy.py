"""Who uses the GPUs now, as far as the screen knows, and which checks would load them."""

from __future__ import annotations

from collections.abc import Sequence

from gpudoctor.checks.registry import LEVELS, Level, select
from gpudoctor.exits import printable
from gpudoctor.facts.missing import known
from gpudoctor.loading import UNSEEN_MIB, UNSEEN_PCT
from gpudoctor.loading import puts_load as checks_put_load
from gpudoctor.tui.state import State

SHOWN_MAX = 8


def puts_load(words: Sequence[str], level: Level) -> bool:
    """Whether a run of these checks (none: all) at this level starts ranks."""
    if LEVELS.index(level) < LEVELS.index("standard"):
        return False
    from gpudoctor.errors import UserError
    from gpudoctor.plugins import all_checks

    try:
        return checks_put_load(select(all_checks(), words), level)
    except UserError:  # a check of a plugin that only the other machine has
        return True


def users_of_gpus(state: State) -> tuple[str, ...]:
    """One line for each use of a GPU: computing processes, else GPUs that are busy with nobody to be seen."""
    lines = _seen(state)
    lines |= _unseen(state, lines)
    more = len(lines) - SHOWN_MAX
    shown = list(lines.values())[:SHOWN_MAX]
    return (*shown, f"and {more} more") if more > 0 else tuple(shown)


def _seen(state: State) -> dict[tuple[int, int], str]:
    """By GPU and process id."""
    if state.processes is not None:
        return {
            (p.gpu, p.pid): _line(p.gpu, p.name, p.pid, p.user)
            for p in state.processes
            if "C" in p.kind or "M" in p.kind
        }
    gpus = state.node.gpus if state.node is not None else ()
    return {
        (gpu.index, p.pid): _line(gpu.index, known(p.name), p.pid, known(p.user))
        for gpu in gpus
        for p in known(gpu.processes) or ()
        if ("C" in p.kind or "M" in p.kind) and not p.is_own
    }


def _unseen(state: State, seen: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
    """In a container the work of others shows in memory and utilisation only."""
    with_process = {gpu for gpu, _ in seen}
    lines = {}
    for index, tick in sorted(state.latest.items()):
        used_mib = tick.readings.get("memory_used_mib", 0.0)
        busy_pct = tick.readings.get("utilization_pct", 0.0)
        if index not in with_process and (used_mib > UNSEEN_MIB or busy_pct > UNSEEN_PCT):
            text = f"GPU {index}: {busy_pct:.0f} % busy, {used_mib:.0f} MiB in use by a process that is not seen here"
            lines[index, -1] = text
    return lines


def _line(gpu: int, name: str | None, pid: int, user: str | None) -> str:
    by = f" of {printable(user)}" if user else ""
    return f"GPU {gpu}: {printable(name or 'a process')}{by} (pid {pid})"
