"""NUMA nodes, and which of them are GPU memory rather than RAM."""

from __future__ import annotations

import re
from pathlib import Path

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import NumaNode
from gpudoctor.facts.system.sysfs import key_values, list_names, present, read_text

_NODE = re.compile(r"node(\d+)")
_NUMA_STATUS = re.compile(r"^Node:\s*(\d+)", re.MULTILINE)
# Grace connects to Hopper and Blackwell by NVLink-C2C, POWER9 to Volta by NVLink; no others show HBM as a node
_COHERENT_MACHINES = ("aarch64", "ppc64le")


def read_numa_nodes(root: Path, machine: str | Missing) -> tuple[NumaNode, ...] | Missing:
    """The nodes by number.

    A node without CPUs is GPU memory if the NVIDIA driver names it in a GPU's `numa_status`, or
    if the machine can attach GPU memory coherently (aarch64, ppc64le) and the driver
    is loaded. A node without CPUs on any other machine is ordinary memory (CXL, persistent memory).
    """
    names = list_names(root / "sys/devices/system/node")
    if isinstance(names, Missing):
        return names
    numbers = sorted(int(match[1]) for name in names if (match := _NODE.fullmatch(name)))
    named = _nodes_named_by_driver(root)
    coherent = machine in _COHERENT_MACHINES and present(root / "sys/module/nvidia")
    nodes: list[NumaNode] = []
    for number in numbers:
        folder = root / f"sys/devices/system/node/node{number}"
        cpus = read_text(folder / "cpulist")
        gpu_memory = cpus == "" and (coherent or number in named)
        nodes.append(
            NumaNode(
                node=number,
                memory_mib=read_meminfo_mib(folder / "meminfo", f"Node {number} MemTotal"),
                cpus="" if isinstance(cpus, Missing) else cpus,
                is_gpu_memory=gpu_memory,
            )
        )
    return tuple(nodes)


def gpu_memory_free_mib(root: Path, nodes: tuple[NumaNode, ...]) -> int:
    """Free memory of the GPU-memory nodes, which the kernel includes in MemAvailable."""
    total = 0
    for node in nodes:
        if node.is_gpu_memory:
            path = root / f"sys/devices/system/node/node{node.node}/meminfo"
            free = read_meminfo_mib(path, f"Node {node.node} MemFree")
            total += 0 if isinstance(free, Missing) else free
    return total


def read_meminfo_mib(path: Path, key: str) -> int | Missing:
    """One line of a meminfo file in MiB (the file has kB)."""
    text = read_text(path)
    if isinstance(text, Missing):
        return text
    value = key_values(text).get(key)
    if value is None:
        return Missing(f"{path} has no {key}", "absent")
    number = value.removesuffix("kB").strip()
    if not number.isdecimal():
        return Missing(f"{path}: {key} reads {value[:40]!r}", "failed")
    return int(number) // 1024


def _nodes_named_by_driver(root: Path) -> frozenset[int]:
    folder = root / "proc/driver/nvidia/gpus"
    names = list_names(folder)
    found: set[int] = set()
    for name in known(names) or ():
        status = read_text(folder / name / "numa_status")
        if isinstance(status, str) and (match := _NUMA_STATUS.search(status)):
            found.add(int(match[1]))
    return frozenset(found)
