"""The machine around the GPUs: memory, CPUs, limits, shared memory, virtualisation."""

from __future__ import annotations

import os
import re
import time

from gpudoctor.facts.model.missing import Missing, if_known, known
from gpudoctor.facts.model.node import Host, NumaNode
from gpudoctor.facts.system.environment import given_node_name
from gpudoctor.facts.system.sysfs import (
    ROOT,
    AnyPath,
    format_cpu_list,
    key_values,
    list_names,
    missing_from,
    parse_cpu_list,
    present,
    read_text,
)
from gpudoctor.facts.system.virtualization import read_limits, read_virtualization
from gpudoctor.lazy import lazy_pattern

_NODE = lazy_pattern(r"node(\d+)")
_NUMA_STATUS = lazy_pattern(r"^Node:\s*(\d+)", re.MULTILINE)
# Grace connects to Hopper and Blackwell by NVLink-C2C, POWER9 to Volta by NVLink; no others show HBM as a node
_COHERENT_MACHINES = ("aarch64", "ppc64le")
_CPU = lazy_pattern(r"cpu\d+")
_NUMBER = lazy_pattern(r"\d{1,15}(?:\.\d{1,15})?")


def read_host(root: AnyPath) -> Host:
    """Every fact of `Host`; one that cannot be read is Missing and does not affect the others."""
    machine = _machine(root)
    nodes = read_numa_nodes(root, machine)
    meminfo = root / "proc/meminfo"
    told_nodes = known(nodes) or ()
    ram = _without_gpu_memory(read_meminfo_mib(meminfo, "MemTotal"), _gpu_memory_mib(told_nodes))
    total, usable = _cpus(root)
    shm, shm_free = _shared_memory(root)
    return Host(
        hostname=_hostname(root),
        kernel=read_text(root / "proc/sys/kernel/osrelease"),
        os_name=_os_name(root),
        machine=machine,
        uptime_s=_uptime_s(root),
        # LXC replaces /proc/meminfo, and not the NUMA nodes: the difference is then no RAM
        ram_mib=ram if ram != 0 else Missing("meminfo holds less than the GPUs' memory: it is a container's", "failed"),
        ram_available_mib=_without_gpu_memory(
            read_meminfo_mib(meminfo, "MemAvailable"), gpu_memory_free_mib(root, told_nodes)
        ),
        numa_nodes=nodes,
        cpus_total=total,
        cpus_usable=if_known(usable, len),
        cpus_usable_list=if_known(usable, format_cpu_list),
        cpu_governor=_one_of_all_cpus(root, "scaling_governor"),
        cpu_scaling_driver=_one_of_all_cpus(root, "scaling_driver"),
        load_1m=_first_number(root / "proc/loadavg"),
        shm_mib=shm,
        shm_free_mib=shm_free,
        memlock_kib=_ulimit(root, "Max locked memory", unit=1024),
        open_files=_ulimit(root, "Max open files"),
        processes=_ulimit(root, "Max processes"),
        swap_mib=read_meminfo_mib(meminfo, "SwapTotal"),
        swap_free_mib=read_meminfo_mib(meminfo, "SwapFree"),
        **read_virtualization(root),  # type: ignore[arg-type]
        **read_limits(root),
    )


def _is_this_machine(root: AnyPath) -> bool:
    return os.fspath(root) == ROOT


def _hostname(root: AnyPath) -> str | Missing:
    """GPUDOCTOR_NODE_NAME if set, because the kernel's name in a pod is the pod's."""
    given = given_node_name() if _is_this_machine(root) else None
    return given or read_text(root / "proc/sys/kernel/hostname")


def _machine(root: AnyPath) -> str | Missing:
    """/proc has the architecture only since Linux 6.1; uname has that of the running kernel."""
    if _is_this_machine(root):
        return os.uname().machine
    return read_text(root / "proc/sys/kernel/arch")


def _uptime_s(root: AnyPath) -> float | Missing:
    """Seconds since the kernel's boot, as its log counts them: /proc/uptime in LXC is that of the container."""
    if _is_this_machine(root):
        return round(time.clock_gettime(time.CLOCK_BOOTTIME), 2)
    return _first_number(root / "proc/uptime")


def _os_name(root: AnyPath) -> str | Missing:
    text = read_text(root / "etc/os-release")
    if isinstance(text, Missing):
        text = read_text(root / "usr/lib/os-release")
    if isinstance(text, Missing):
        return text
    named = re.search(r"^PRETTY_NAME=(.*)$", text, re.MULTILINE)
    return named[1].strip().strip("\"'") if named else Missing("os-release has no PRETTY_NAME", "absent")


def _first_number(path: AnyPath) -> float | Missing:
    text = read_text(path)
    if isinstance(text, Missing):
        return text
    first = text.partition(" ")[0]
    if not _NUMBER.fullmatch(first):
        return Missing(f"{path}: reads {first[:40]!r}, not a number", "failed")
    return float(first)


def _gpu_memory_mib(nodes: tuple[NumaNode, ...]) -> int | Missing:
    """Memory of the GPU-memory nodes; Missing if that of any of them is."""
    sizes = [node.memory_mib for node in nodes if node.is_gpu_memory]
    unread = next((size for size in sizes if isinstance(size, Missing)), None)
    return unread or sum(known(size) or 0 for size in sizes)


def _without_gpu_memory(memory_mib: int | Missing, gpu_memory_mib: int | Missing) -> int | Missing:
    if isinstance(memory_mib, Missing):
        return memory_mib
    if isinstance(gpu_memory_mib, Missing):
        return gpu_memory_mib
    return max(0, memory_mib - gpu_memory_mib)


def _cpus(root: AnyPath) -> tuple[int | Missing, frozenset[int] | Missing]:
    """How many CPUs are online, and those that this process may run on.

    The kernel's Cpus_allowed_list may name CPUs that do not exist, so only online ones are kept.
    """
    online = parse_cpu_list(known(read_text(root / "sys/devices/system/cpu/online")) or "")
    cpuinfo = "" if online else known(read_text(root / "proc/cpuinfo")) or ""
    count = len(online) if online else len(re.findall("^processor", cpuinfo, re.MULTILINE))
    total = count or Missing("neither /sys nor /proc/cpuinfo counts the CPUs", "absent")
    if _is_this_machine(root):
        return total, frozenset(os.sched_getaffinity(0))
    status = read_text(root / "proc/self/status")
    if isinstance(status, Missing):
        return total, status
    allowed = parse_cpu_list(key_values(status).get("Cpus_allowed_list", ""))
    if not allowed:
        return total, Missing("/proc/self/status has no Cpus_allowed_list", "absent")
    return total, (allowed & online if online else allowed)


def _one_of_all_cpus(root: AnyPath, attribute: str) -> str | Missing:
    """A cpufreq attribute of all CPUs: the common value, or the different ones joined by commas."""
    folder = root / "sys/devices/system/cpu"
    names = list_names(folder)
    if isinstance(names, Missing):
        return names
    # CPUs that change clocks together share a policy: some machines have far fewer policies than CPUs
    policies = list_names(folder / "cpufreq")
    paths = (
        [folder / "cpufreq" / name for name in policies if name.startswith("policy")]
        if not isinstance(policies, Missing)
        else [folder / name / "cpufreq" for name in names if _CPU.fullmatch(name)]
    )
    readings = [read_text(path / attribute) for path in paths]
    values = {reading for reading in readings if isinstance(reading, str)}
    if values:
        return ",".join(sorted(values))
    unread = next((reading for reading in readings if isinstance(reading, Missing) and reading.kind != "absent"), None)
    return unread or Missing("the CPUs' clocks are not under this kernel's control", "absent")


def _shared_memory(root: AnyPath) -> tuple[int | Missing, int | Missing]:
    """Size and free space of /dev/shm in MiB."""
    try:
        stats = os.statvfs(root / "dev/shm")
    except OSError as error:
        missing = missing_from(error, "/dev/shm")
        return missing, missing
    if stats.f_blocks == 0:
        unlimited = Missing("/dev/shm has no size: RAM is its limit", "unsupported")  # tmpfs with size=0
        return unlimited, unlimited
    mib = 1 << 20
    return stats.f_blocks * stats.f_frsize // mib, stats.f_bavail * stats.f_frsize // mib


def _ulimit(root: AnyPath, name: str, unit: int = 1) -> int | Missing | None:
    """The soft limit of this process, which is the effective one; None if it is unlimited."""
    text = read_text(root / "proc/self/limits")
    if isinstance(text, Missing):
        return text
    reported = re.search(rf"^{name} *(\S*)", text, re.MULTILINE)
    if reported is None:
        return Missing(f"/proc/self/limits has no {name}", "absent")
    if reported[1] == "unlimited":
        return None
    if reported[1].isdecimal():
        return int(reported[1]) // unit
    return Missing(f"/proc/self/limits: {name} reads {reported[1][:40]!r}", "failed")


# NUMA nodes, and which of them are GPU memory rather than RAM


def read_numa_nodes(root: AnyPath, machine: str | Missing) -> tuple[NumaNode, ...] | Missing:
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
        memory_mib = read_meminfo_mib(folder / "meminfo", f"Node {number} MemTotal")
        is_gpu_memory = cpus == "" and (coherent or number in named)
        nodes.append(NumaNode(number, memory_mib, known(cpus) or "", is_gpu_memory))
    return tuple(nodes)


def gpu_memory_free_mib(root: AnyPath, nodes: tuple[NumaNode, ...]) -> int:
    """Free memory of the GPU-memory nodes, which the kernel includes in MemAvailable."""
    total = 0
    for node in nodes:
        if node.is_gpu_memory:
            meminfo = root / f"sys/devices/system/node/node{node.node}/meminfo"
            total += known(read_meminfo_mib(meminfo, f"Node {node.node} MemFree")) or 0
    return total


def read_meminfo_mib(path: AnyPath, key: str) -> int | Missing:
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


def _nodes_named_by_driver(root: AnyPath) -> frozenset[int]:
    folder = root / "proc/driver/nvidia/gpus"
    names = known(list_names(folder)) or ()
    reported = (_NUMA_STATUS.search(known(read_text(folder / name / "numa_status")) or "") for name in names)
    return frozenset(int(match[1]) for match in reported if match)
