"""Read the host's CPU, memory and load, and the processes behind the pids on the GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
from msgspec.structs import replace

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Host
from gpudoctor.facts.stream.messages import HostTick, OnGpu, ProcessTick
from gpudoctor.facts.system.host import gpu_memory_free_mib
from gpudoctor.facts.system.sysfs import read_int, read_text

T = TypeVar("T")

_MIB = 1 << 20
MAX_COMMAND = 200
_MAX_ANCESTORS = 4
_TORCHRUN = re.compile(r"(?:^|[\s/])(?:torchrun(?:\s|$)|torch\.distributed\.(?:run|launch|elastic)\b)")
_MPIRUN = re.compile(r"(?:^|/)(?:mpirun|mpiexec|orterun|prterun)(?:\s|$)")
_SLURM_GROUP = re.compile(r"/job_(\d{1,12})(?:/|$)", re.MULTILINE)
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMIX_RANK", "PMI_RANK")


class HostReader:
    """Reads the live host. `host` are its facts, which contain the memory limit and the NUMA nodes of GPU memory."""

    def __init__(self, host: Host, root: Path = Path("/")) -> None:
        self._root = root
        nodes = known(host.numa_nodes) or ()
        self._gpu_nodes = nodes if any(node.is_gpu_memory for node in nodes) else ()
        self._ram_mib = known(host.ram_mib)
        self._limit_mib = known(host.memory_limit_mib)
        source = known(host.memory_limit_source)
        self._group = Path(source).parent if source is not None and source.startswith("/") else None
        self._cpus = known(host.cpus_total)
        psutil.cpu_percent(None)

    def read(self) -> HostTick:
        """CPU load since the last call; memory relative to the cgroup's limit if there is one."""
        memory = psutil.virtual_memory()
        total_mib, available_mib = memory.total / _MIB, memory.available / _MIB
        if self._gpu_nodes and self._ram_mib is not None:
            total_mib = float(self._ram_mib)
            available_mib -= gpu_memory_free_mib(self._root, self._gpu_nodes)
        used_mib: float | None = total_mib - available_mib
        if self._group is not None and self._limit_mib is not None and self._limit_mib < total_mib:
            total_mib, used_mib = float(self._limit_mib), self._used_of_group()
        try:
            load = os.getloadavg()[0]
        except OSError:
            load = None
        return HostTick(
            cpu_pct=psutil.cpu_percent(None),
            cpus=self._cpus,
            ram_used_mib=None if used_mib is None else round(used_mib),
            ram_total_mib=round(total_mib),
            load_1min=None if load is None else round(load, 2),
        )

    def _used_of_group(self) -> float | None:
        """The cgroup's memory in MiB without inactive page cache, which the kernel reclaims at once."""
        assert self._group is not None
        folder = self._root / str(self._group).lstrip("/")
        used = read_int(folder / "memory.current")
        if isinstance(used, Missing):
            used = read_int(folder / "memory.usage_in_bytes")
        if isinstance(used, Missing):
            return None
        text = known(read_text(folder / "memory.stat")) or ""
        stats = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        cached = stats.get("total_inactive_file", stats.get("inactive_file", "0"))
        return max(0, used - (int(cached) if cached.isdecimal() else 0)) / _MIB


def job_of(environ: Mapping[str, str] | None, group: str, commands: Iterable[str]) -> tuple[str | None, int | None]:
    """Launcher and batch job of a process as text, and its rank.

    From its environment (None if it may not be read), cgroup, and command lines: its own and those of its ancestors,
    nearest first.

    >>> job_of({"RANK": "3", "TORCHELASTIC_RUN_ID": "x"}, "/slurm/uid_7/job_4711/step_0", [])
    ('torchrun, Slurm 4711', 3)
    """
    known = environ or {}
    own, *above = [*commands] or [""]
    names = []
    if "TORCHELASTIC_RUN_ID" in known or any(_TORCHRUN.search(command) for command in above):
        names.append("torchrun")
    elif "OMPI_COMM_WORLD_RANK" in known or any(_MPIRUN.search(command) for command in above):
        names.append("mpirun")
    if "RAY_JOB_ID" in known or own.startswith("ray::"):
        names.append("Ray")
    in_group = _SLURM_GROUP.search(group)
    number = known.get("SLURM_JOB_ID") or (in_group[1] if in_group else "")
    if number.isdecimal() and len(number) <= 12:
        names.append(f"Slurm {number}")
    ranks = (known.get(name, "") for name in _RANKS)
    rank = next((int(text) for text in ranks if text.isdecimal() and len(text) <= 7), None)
    return ", ".join(names) or None, rank


class ProcessReader:
    """Looks up the driver's pids in the system; what does not change is read once per process."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def read(self, on_gpus: Iterable[OnGpu]) -> tuple[ProcessTick, ...]:
        """One tick per process on a GPU; what may not be read is None. CPU: percent of one CPU since the last call."""
        on_gpus = tuple(on_gpus)
        self._known = {pid: self._same(pid) for pid in {one.pid for one in on_gpus}}
        cpu = {pid: known.cpu_pct() for pid, known in self._known.items()}
        return tuple(
            replace(
                self._known[one.pid].facts,
                gpu=one.gpu,
                kind=one.kind,
                memory_mib=one.memory_mib,
                cpu_pct=cpu[one.pid],
            )
            for one in on_gpus
        )

    def _same(self, pid: int) -> _Known:
        known = self._known.get(pid)
        # the pid may have been reused
        return known if known is not None and known.is_running() else _Known(pid)


class _Known:
    """One process; `facts`: what does not change."""

    def __init__(self, pid: int) -> None:
        self.facts = ProcessTick(0, pid)
        # None: it has ended, or is in another PID namespace
        self._process = process = _told(partial(psutil.Process, pid))
        if process is None:
            return
        with process.oneshot():
            name, user = _told(process.name), _told(process.username)
        command = _command(process)
        group = known(read_text(Path(f"/proc/{pid}/cgroup"))) or ""
        ancestors = (_told(process.parents) or [])[:_MAX_ANCESTORS]
        job, rank = job_of(_told(process.environ), group, [command or "", *(_command(a) or "" for a in ancestors)])
        self.facts = ProcessTick(0, pid, name=_line(name), user=_line(user), command=_line(command), job=job, rank=rank)
        self.cpu_pct()

    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    def cpu_pct(self) -> float | None:
        return None if self._process is None else _told(partial(self._process.cpu_percent, None))


def _told(read: Callable[[], T]) -> T | None:
    """What is read of a process; None if it has ended, or that may not be read."""
    try:
        return read()
    except (psutil.Error, OSError, KeyError):
        return None


def _command(process: psutil.Process) -> str | None:
    return " ".join(_told(process.cmdline) or ()) or None


def _line(text: str | None) -> str | None:
    """At most `MAX_COMMAND` characters on one line, printable: names and commands are untrusted."""
    if text is None:
        return None
    text = text[:MAX_COMMAND].encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else " " for c in text)
