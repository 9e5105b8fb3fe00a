"""The host at one moment: CPU, memory, load."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Host
from gpudoctor.facts.stream.messages import HostTick
from gpudoctor.facts.system.numa import gpu_memory_free_mib
from gpudoctor.facts.system.sysfs import read_int, read_text

_MIB = 1 << 20


class HostReader:
    """Reads the live host; `host` are its facts, which say what limits its memory and what of it is the GPUs' own."""

    def __init__(self, host: Host, root: Path = Path("/")) -> None:
        self._psutil = psutil
        self._root = root
        nodes = () if isinstance(host.numa_nodes, Missing) else host.numa_nodes
        self._gpu_nodes = nodes if any(node.is_gpu_memory for node in nodes) else ()
        self._ram_mib = known(host.ram_mib)
        self._limit_mib = known(host.memory_limit_mib)
        source = known(host.memory_limit_source)
        self._group = Path(source).parent if source is not None and source.startswith("/") else None
        self._cpus = known(host.cpus_total)
        psutil.cpu_percent(None)

    def read(self) -> HostTick:
        """CPU since the last time; memory as the limit on this process counts it, where there is one."""
        memory = self._psutil.virtual_memory()
        total_mib, available_mib = memory.total / _MIB, memory.available / _MIB
        if self._gpu_nodes and self._ram_mib is not None:
            free_mib = gpu_memory_free_mib(self._root, self._gpu_nodes)
            total_mib = float(self._ram_mib)
            available_mib -= free_mib
        used_mib: float | None = total_mib - available_mib
        if self._group is not None and self._limit_mib is not None and self._limit_mib < total_mib:
            total_mib, used_mib = float(self._limit_mib), self._used_of_group()
        try:
            load = os.getloadavg()[0]
        except OSError:
            load = None
        return HostTick(
            cpu_pct=self._psutil.cpu_percent(None),
            cpus=self._cpus,
            ram_used_mib=None if used_mib is None else round(used_mib),
            ram_total_mib=round(total_mib),
            load_1min=None if load is None else round(load, 2),
        )

    def _used_of_group(self) -> float | None:
        """Without what the kernel would give back at once: pages of files that nobody used lately."""
        assert self._group is not None
        folder = self._root / str(self._group).lstrip("/")
        used = read_int(folder / "memory.current")
        if isinstance(used, Missing):
            used = read_int(folder / "memory.usage_in_bytes")
        if isinstance(used, Missing):
            return None
        text = read_text(folder / "memory.stat")
        stats = dict(line.split(" ", 1) for line in text.splitlines() if " " in line) if isinstance(text, str) else {}
        cached = stats.get("total_inactive_file", stats.get("inactive_file", "0"))
        return max(0, used - (int(cached) if cached.isdecimal() else 0)) / _MIB
