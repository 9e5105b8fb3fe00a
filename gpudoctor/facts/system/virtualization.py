"""Whether this is a container, a virtual machine or bare metal, and the limits that control groups impose.

Limits on memory, CPU time and CPUs, of control groups of version 1 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.system.mounts import read_mounts
from gpudoctor.facts.system.sysfs import AnyPath, parse_cpu_list, present, read_int, read_text
from gpudoctor.lazy import lazy_pattern

_NO_NAME = "unnamed"
# DMI vendor or product -> the name systemd-detect-virt uses
_DMI_NAMES = (
    ("amazon ec2", "amazon"),
    ("google compute engine", "google"),
    ("google", "google"),
    ("virtual machine", "microsoft"),
    ("vmware", "vmware"),
    ("virtualbox", "oracle"),
    ("innotek", "oracle"),
    ("parallels", "parallels"),
    ("bhyve", "bhyve"),
    ("xen", "xen"),
    ("kvm", "kvm"),
    ("openstack", "kvm"),
    ("alibaba cloud", "alibaba"),
    ("qemu", "qemu"),
)
_TRACES = {"run/.containerenv": "podman", ".dockerenv": "docker", ".singularity.d": "singularity"}
_CGROUP_HINTS = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("docker", "docker"),
    ("containerd", "containerd"),
    ("crio-", "cri-o"),
    ("/lxc", "lxc"),
    ("/machine.slice/machine-", "systemd-nspawn"),
)
_FLAGS = lazy_pattern(r"^flags\s*:(.*)$", re.MULTILINE)
# Version 1 writes "no limit" as the largest page-aligned signed 64-bit number, which depends on the page size
_UNLIMITED_BYTES = 1 << 62
_Limit = float | Missing | None


def read_virtualization(root: AnyPath) -> dict[str, str | Missing]:
    """The leaves of `Host` for virtualisation: "container" also for one inside a virtual machine.

    Looks for the traces of a container, then of a hypervisor. A hypervisor without a name is "unnamed".
    """
    container = container_engine(root)
    hypervisor = _hypervisor(root)
    machine = hypervisor if isinstance(hypervisor, Missing) else "none" if hypervisor is None else "vm"
    return {
        "virtualization": machine if container is None else "container",
        "hypervisor": hypervisor or Missing("not a virtual machine", "absent"),
        "container": container or Missing("not a container", "absent"),
    }


def container_engine(root: AnyPath) -> str | None:
    """The name of the container engine; None outside of a container."""
    variables = {**_variables(root / "proc/1/environ"), **_variables(root / "proc/self/environ")}
    if "KUBERNETES_SERVICE_HOST" in variables or present(root / "var/run/secrets/kubernetes.io"):
        return "kubernetes"
    for trace, engine in _TRACES.items():
        if present(root / trace):
            return engine
    named = variables.get("container") or read_text(root / "run/systemd/container")
    if isinstance(named, str) and named:
        return named[:40]
    return engine_of(known(read_text(root / "proc/1/cgroup")) or "")


def engine_of(cgroups: str) -> str | None:
    """The container engine that created the control groups of a process (the text of its /proc/PID/cgroup)."""
    return next((engine for hint, engine in _CGROUP_HINTS if hint in cgroups), None)


def _variables(path: AnyPath) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in (known(read_text(path)) or "").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def _hypervisor(root: AnyPath) -> str | Missing | None:
    """The hypervisor's name; None on bare metal. On x86 the CPU flags decide, elsewhere only firmware strings can."""
    if "control_d" in (known(read_text(root / "proc/xen/capabilities")) or ""):
        return None  # Xen's control domain (dom0)
    # the first CPU is enough, and the kernel takes a while to write hundreds of them
    cpuinfo = read_text(root / "proc/cpuinfo", max_bytes=1 << 14)
    if isinstance(cpuinfo, Missing):
        return cpuinfo
    name = _firmware_name(root)
    flags = _FLAGS.search(cpuinfo)
    if flags is not None:
        return (name or _NO_NAME) if "hypervisor" in flags[1].split() else None
    product = known(read_text(root / "sys/class/dmi/id/product_name")) or ""
    # clouds put their names into the firmware of bare metal too (m7g.metal)
    return None if ".metal" in product else name


def _firmware_name(root: AnyPath) -> str | None:
    if kind := known(read_text(root / "sys/hypervisor/type")):
        return kind
    if "wsl" in (known(read_text(root / "proc/sys/kernel/osrelease")) or "").lower():
        return "wsl"
    dmi = root / "sys/class/dmi/id"
    parts = (known(read_text(dmi / name)) or "" for name in ("product_name", "sys_vendor", "bios_vendor"))
    text = "\n".join(parts).lower()
    return next((name for mark, name in _DMI_NAMES if mark in text), None)


def read_limits(root: AnyPath) -> dict[str, Any]:
    """The leaves of `Host` for the limits of memory and CPU time: the smallest ones of this process's group and its
    ancestors, and the files that set them; None if there is no limit.
    """
    memory, memory_source = _smallest(
        root, "memory", {2: ("memory.max", _memory), 1: ("memory.limit_in_bytes", _memory)}
    )
    quota, quota_source = _smallest(root, "cpu", {2: ("cpu.max", _quota), 1: ("cpu.cfs_quota_us", _quota_v1)})
    return {
        "memory_limit_mib": memory if memory is None or isinstance(memory, Missing) else int(memory) >> 20,
        "memory_limit_source": memory_source,
        "cpu_quota": quota,
        "cpu_quota_source": quota_source,
    }


def read_cpuset(root: AnyPath) -> int | Missing:
    """How many CPUs this process's group may use, from cpuset.cpus.effective or cpuset.effective_cpus."""
    groups = _groups(root, "cpuset")
    if isinstance(groups, Missing):
        return groups
    for folder, version in groups:  # a group without the controller has the CPUs of the next group above
        name = "cpuset.cpus.effective" if version == 2 else "cpuset.effective_cpus"
        text = read_text(root / folder.lstrip("/") / name)
        if not isinstance(text, Missing) and text.strip():
            cpus = parse_cpu_list(text)
            return Missing(f"{folder}/{name} reads {text[:40]!r}", "failed") if cpus is None else len(cpus)
    return Missing("no cpuset controller is mounted")


def _smallest(
    root: AnyPath, controller: str, files: dict[int, tuple[str, Callable[[AnyPath], _Limit]]]
) -> tuple[_Limit, str | Missing]:
    """The smallest limit and its file; `files`: name and reader of the file, by the version of the hierarchy."""
    groups = _groups(root, controller)
    if isinstance(groups, Missing):
        return groups, groups
    limits: list[tuple[float, str]] = []
    unread: Missing | None = None
    for folder, version in groups:
        name, read = files[version]
        limit = read(root / folder.lstrip("/") / name)
        if isinstance(limit, Missing):
            # no limit files in the root group of version 2, or in a group whose controller is not enabled
            unread = unread if limit.kind == "absent" else limit
        elif limit is not None:
            limits.append((limit, f"{folder.rstrip('/')}/{name}"))
    if limits:
        return min(limits)
    return unread, unread or Missing("no limit", "absent")


def _groups(root: AnyPath, controller: str) -> list[tuple[str, int]] | Missing:
    """The folders of this process's group and its ancestors under a controller, with the version of the hierarchy.

    Joins /proc/self/cgroup (which group) with /proc/self/mountinfo (where it is mounted).
    """
    groups = read_text(root / "proc/self/cgroup")
    if isinstance(groups, Missing):
        return groups
    mounts = _mounts(root)
    found: list[tuple[str, int]] = []
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        if number == "0" and not names:
            controllers, version = {"memory", "cpu", "cpuset"}, 2
            mounted_as, standard = "cgroup2", "/sys/fs/cgroup"
        else:
            controllers, version = set(names.split(",")), 1
            mounted_as = next((name for name in sorted(controllers) if name in mounts), "")
            standard = f"/sys/fs/cgroup/{names}"
        if controller in controllers:
            mount, top = mounts.get(mounted_as, (standard, "/"))
            found += [(folder, version) for folder in _way_up(mount, top, group)]
    return found


def _mounts(root: AnyPath) -> dict[str, tuple[str, str]]:
    """`cgroup2` or a version 1 controller -> mount point and the group that is mounted there."""
    found: dict[str, tuple[str, str]] = {}
    for mount in known(read_mounts(root)) or ():
        if mount.fs_type in ("cgroup", "cgroup2"):
            for name in ("cgroup2",) if mount.fs_type == "cgroup2" else mount.system_options:
                found.setdefault(name, (mount.point, mount.top))
    return found


def _way_up(mount: str, top: str, group: str) -> Iterator[str]:
    """The folders from this process's group to the mount point; `top`: the group that is mounted there.

    A container may see the host's group name while only its own group is mounted: groups above
    the mounted group are not visible, and for a group outside of it only the mount point is left.
    """
    group, top = f"{group.rstrip('/')}/", f"{top.rstrip('/')}/"
    inside = [part for part in group[len(top) :].split("/") if part not in ("", ".")] if group.startswith(top) else []
    if ".." not in inside:
        for depth in range(len(inside), 0, -1):
            yield "/".join((mount, *inside[:depth]))
    yield mount


def _memory(file: AnyPath) -> _Limit:
    limit = None if read_text(file) == "max" else read_int(file)
    return None if isinstance(limit, int) and not 0 <= limit < _UNLIMITED_BYTES else limit


def _quota(file: AnyPath) -> _Limit:
    text = read_text(file)
    if isinstance(text, Missing):
        return text
    quota, _, period = text.partition(" ")
    if quota == "max":
        return None
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return Missing(f"{file} reads {text[:40]!r}", "failed")
    return int(quota) / int(period)


def _quota_v1(file: AnyPath) -> _Limit:
    quota, period = read_int(file), read_int(file.parent / "cpu.cfs_period_us")
    if isinstance(quota, Missing) or isinstance(period, Missing):
        return quota if isinstance(quota, Missing) else period
    return None if quota < 0 or period <= 0 else quota / period
