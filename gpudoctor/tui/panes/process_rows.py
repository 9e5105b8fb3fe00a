"""The rows of the Processes tab: what they hold, their order, which a filter leaves, and why there are none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpudoctor.exits import printable
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.stream.messages import ProcessTick
from gpudoctor.tui.state import State

Column = Literal["gpu", "pid", "user", "job", "memory", "cpu", "command"]
CYCLE: tuple[Column, ...] = ("gpu", "memory", "cpu", "user")


@dataclass(frozen=True)
class Heading:
    """A column: its title with the unit, its width, and whether figures stand at its right edge."""

    title: str
    width: int
    right: bool = False


HEADINGS: dict[Column, Heading] = {
    "gpu": Heading("GPU", 4, right=True),
    "pid": Heading("PID", 8, right=True),
    "user": Heading("user", 9),
    "job": Heading("job", 15),
    "memory": Heading("MiB", 8, right=True),
    "cpu": Heading("CPU %", 7, right=True),
    "command": Heading("command", 0),
}
TITLES: dict[Column, str] = {"gpu": "GPU", "pid": "PID", "memory": "GPU memory", "cpu": "CPU"}


def processes_of(state: State) -> tuple[ProcessTick, ...] | None:
    """What the stream told last; before that, what the facts hold; None where neither tells."""
    if state.processes is not None or state.node is None:
        return state.processes
    if all(isinstance(gpu.processes, Missing) for gpu in state.node.gpus):
        return None
    return tuple(
        ProcessTick(gpu.index, p.pid, known(p.name), p.kind, known(p.user), known(p.memory_mib))
        for gpu in state.node.gpus
        for p in known(gpu.processes) or ()
    )


def cells(process: ProcessTick) -> dict[Column, str]:
    """What stands in each column; "-" is what could not be read."""
    job = process.job or ("-" if process.rank is None else "")
    rank = "" if process.rank is None else f"rank {process.rank}"
    command = process.command or process.name or "-"
    kind = "" if process.kind == "C" else f"[{process.kind}] "
    return {
        "gpu": str(process.gpu),
        "pid": str(process.pid),
        "user": printable(process.user or "-"),
        "job": printable(" ".join(word for word in (job, rank) if word)),
        "memory": "-" if process.memory_mib is None else f"{process.memory_mib:.0f}",
        "cpu": "-" if process.cpu_pct is None else f"{process.cpu_pct:.0f}",
        "command": printable(kind + command),
    }


def ordered(processes: Iterable[ProcessTick], by: Column) -> list[ProcessTick]:
    """Figures of use: the highest first, what is not known last; all else ascending."""

    def key(process: ProcessTick) -> tuple[bool, float, str, int, int]:
        tail = (process.gpu, process.pid)
        if by in ("memory", "cpu"):
            value = process.memory_mib if by == "memory" else process.cpu_pct
            return (value is None, -(value or 0.0), "", *tail)
        if by in ("gpu", "pid"):
            return (False, float(process.gpu if by == "gpu" else process.pid), "", *tail)
        text = cells(process)[by]
        return (text == "-", 0.0, text.lower(), *tail)

    return sorted(processes, key=key)


def filtered(processes: Iterable[ProcessTick], words: str) -> list[ProcessTick]:
    """Those with these words (lower case) in any column."""
    return [one for one in processes if not words or any(words in text.lower() for text in cells(one).values())]


def unread(state: State) -> list[str]:
    """GPUs whose processes could not be read, and why; a line for each reason."""
    reasons: dict[str, list[int]] = {}
    for gpu in state.node.gpus if state.node is not None else ():
        live = state.latest.get(gpu.index)
        why = live.unread.get("processes") if live is not None else None
        if why is None and state.processes is None and isinstance(gpu.processes, Missing):
            why = gpu.processes
        if why is not None:
            reasons.setdefault(why.reason, []).append(gpu.index)
    return [
        f"GPU {', '.join(str(index) for index in indices)}: processes could not be read: {printable(reason)}"
        for reason, indices in reasons.items()
    ]


def why_empty(state: State) -> str:
    """What an empty table means: nothing runs, or nothing could be read."""
    if state.node is None:
        return "No facts yet."
    if not state.node.gpus:
        return "No GPU is known here, so there are no processes on one."
    said = unread(state)
    if processes_of(state) is None:
        return "\n".join(said) or "The processes were not read yet."
    every = len(said) == 0
    return "No process runs on any GPU." if every else "\n".join(["No process is seen on the other GPUs.", *said])
