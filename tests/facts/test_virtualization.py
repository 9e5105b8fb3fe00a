"""Container, virtual machine or bare metal: the marks each leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Host
from tests.sysfs_tree import host_of

BARE_CPU = "processor\t: 0\nflags\t\t: fpu vme sse2"
VM_CPU = "processor\t: 0\nflags\t\t: fpu hypervisor sse2"
ARM_CPU = "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd"


def read_cpu(root: Path, cpu: str, vendor: str, product: str) -> Host:
    """A machine with this CPU and these words of its firmware."""
    dmi = "/sys/class/dmi/id"
    return host_of(root, {"/proc/cpuinfo": cpu, f"{dmi}/sys_vendor": vendor, f"{dmi}/product_name": product})


@pytest.mark.parametrize(
    ("files", "engine"),
    [
        ({"/.dockerenv": ""}, "docker"),
        ({"/run/.containerenv": 'engine="podman-4"'}, "podman"),
        ({"/.singularity.d/labels.json": "{}"}, "singularity"),
        ({"/proc/1/environ": "PATH=/bin\0container=lxc\0"}, "lxc"),
        ({"/run/systemd/container": "systemd-nspawn"}, "systemd-nspawn"),
        ({"/.dockerenv": "", "/proc/self/environ": "KUBERNETES_SERVICE_HOST=10.0.0.1\0"}, "kubernetes"),
        ({"/proc/1/cgroup": "4:memory:/kubepods/burstable/pod1/0123"}, "kubernetes"),
        ({"/proc/1/cgroup": "0::/system.slice/containerd.service/x"}, "containerd"),
    ],
)
def test_a_container_is_known_by_its_marks_and_wins_over_the_machine_around_it(
    tmp_path: Path, files: dict[str, str], engine: str
) -> None:
    host = host_of(tmp_path, {"/proc/cpuinfo": VM_CPU, "/sys/class/dmi/id/sys_vendor": "Amazon EC2", **files})
    assert (host.virtualization, host.container, host.hypervisor) == ("container", engine, "amazon")


@pytest.mark.parametrize(
    ("vendor", "product", "name"),
    [
        ("Amazon EC2", "p5.48xlarge", "amazon"),
        ("Google", "Google Compute Engine", "google"),
        ("Microsoft Corporation", "Virtual Machine", "microsoft"),
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "qemu"),
        ("", "", "unnamed"),
    ],
)
def test_a_virtual_machine_is_known_by_the_cpu_and_named_by_the_firmware(
    tmp_path: Path, vendor: str, product: str, name: str
) -> None:
    host = read_cpu(tmp_path, VM_CPU, vendor, product)
    assert (host.virtualization, host.hypervisor) == ("vm", name)
    assert host.container == Missing("not a container", "absent")


def test_a_bare_machine_of_a_cloud_is_no_virtual_machine(tmp_path: Path) -> None:
    host = read_cpu(tmp_path, BARE_CPU, "Amazon EC2", "")
    assert host.virtualization == "none"
    assert host.hypervisor == Missing("not a virtual machine", "absent")


@pytest.mark.parametrize(
    ("vendor", "product", "kind"),
    [
        ("QEMU", "KVM Virtual Machine", "vm"),
        ("Amazon EC2", "g5g.xlarge", "vm"),
        ("Amazon EC2", "g5g.metal", "none"),
        ("NVIDIA", "GB200 NVL", "none"),
    ],
)
def test_on_arm_the_firmware_alone_tells(tmp_path: Path, vendor: str, product: str, kind: str) -> None:
    assert read_cpu(tmp_path, ARM_CPU, vendor, product).virtualization == kind


def test_xen_wsl_and_the_xen_host_itself(tmp_path: Path) -> None:
    release = {"/proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2"}
    assert host_of(tmp_path, {"/proc/cpuinfo": VM_CPU, **release}).hypervisor == "wsl"
    assert host_of(tmp_path, {"/sys/hypervisor/type": "xen"}).hypervisor == "xen"
    assert host_of(tmp_path, {"/proc/xen/capabilities": "control_d"}).virtualization == "none"
