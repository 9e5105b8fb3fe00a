"""What the kernel counts of a rank's process: alive, CPU, waiting for a CPU, memory, its cgroup."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from math import nan
from pathlib import Path

_PROC = Path("/proc")
_EXITING = 0x4  # PF_EXITING: its sockets may be closed before it is a zombie
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def lives(pid: int, started: int) -> bool:
    """Whether the process that started at this tick still lives; one that exits or is a zombie does not."""
    _, rest = _stat(_PROC / str(pid))
    return bool(rest) and int(rest[19]) == started and rest[0] not in ("Z", "X") and not int(rest[6]) & _EXITING


def on_cpu_ns(pid: int, thread: int) -> float:
    """CPU time of a thread so far, from its schedstat; NaN if the kernel does not count it, or it has ended."""
    fields = (_read(Path(f"{_PROC}/{pid}/task/{thread}/schedstat")) or "").split()
    return float(fields[0]) if len(fields) == 3 else nan


def allowed_cpus(pid: int) -> tuple[int, ...]:
    with suppress(OSError):
        return tuple(sorted(os.sched_getaffinity(pid)))
    return ()


def kernel_place(pid: int) -> str:
    """State and place in the kernel, for a process that does not respond: "D in nfs_wait"."""
    _, rest = _stat(_PROC / str(pid))
    place = (_read(Path(f"{_PROC}/{pid}/wchan")) or "").strip()
    return (rest[0] if rest else "?") + (f" in {place}" if place not in ("", "0") else "")


def children(pid: int) -> tuple[int, ...]:
    """The processes that it has started and that still live, in order."""
    found = []
    for task in _entries(Path(f"{_PROC}/{pid}/task")):
        found += [int(child) for child in (_read(task / "children") or "").split()]
    return tuple(sorted(found))


def handles(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal, and is not ended by it."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", _read(Path(f"{_PROC}/{pid}/status")) or "", re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def memory_events(pid: int) -> Path | None:
    """The file that counts what the memory limit of the process's cgroup has done, of version 2 or 1; None without."""
    for line in (_read(Path(f"{_PROC}/{pid}/cgroup")) or "").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, name = _CGROUP_ROOT, "memory.events"
        elif "memory" in controllers.split(","):
            root, name = _CGROUP_ROOT / "memory", "memory.oom_control"
        else:
            continue
        # a container may see the path of the host, and only its own group
        for folder in (root / path.lstrip("/"), root):
            if (folder / name).is_file():
                return folder / name
    return None


def oom_kills(events: Path) -> int:
    """How many processes the kernel has killed there for the memory limit."""
    found = re.search(r"^oom_kill (\d+)", _read(events) or "", re.MULTILINE)
    return int(found[1]) if found else 0


def busiest_on(cpus: tuple[int, ...], without: set[int]) -> str | None:
    """The process that runs now on one of these CPUs and is none of ours: "pid 12 (stress)"; None if none does."""
    for folder in _entries(_PROC):
        if not folder.name.isdecimal() or int(folder.name) in without:
            continue
        name, rest = _stat(folder)
        if len(rest) > 36 and rest[0] == "R" and int(rest[36]) in cpus and int(folder.name) != os.getpid():
            return f"pid {folder.name} ({name})"
    return None


def _stat(process: Path) -> tuple[str, list[str]]:
    """The name of a process, and the fields of its stat from the state on (proc(5)); none if it has ended."""
    before, _, rest = (_read(process / "stat") or "").rpartition(")")
    return before.partition("(")[2], rest.split()


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
