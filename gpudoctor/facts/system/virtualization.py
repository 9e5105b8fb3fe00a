"""Whether this is a container, a virtual machine or bare metal, and which engine or hypervisor."""

from __future__ import annotations

import re
from pathlib import Path

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.system.sysfs import present, read_text

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
_FLAGS = re.compile(r"^flags\s*:(.*)$", re.MULTILINE)


def read_virtualization(root: Path) -> dict[str, str | Missing]:
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


def container_engine(root: Path) -> str | None:
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


def _variables(path: Path) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in (known(read_text(path)) or "").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def _hypervisor(root: Path) -> str | Missing | None:
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


def _firmware_name(root: Path) -> str | None:
    if kind := known(read_text(root / "sys/hypervisor/type")):
        return kind
    if "wsl" in (known(read_text(root / "proc/sys/kernel/osrelease")) or "").lower():
        return "wsl"
    dmi = root / "sys/class/dmi/id"
    words = (known(read_text(dmi / name)) or "" for name in ("product_name", "sys_vendor", "bios_vendor"))
    text = "\n".join(words).lower()
    return next((name for mark, name in _DMI_NAMES if mark in text), None)
