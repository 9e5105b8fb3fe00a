"""Builders of fake /sys, /proc and /dev trees: a reader is given their root instead of "/"."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Host
from gpudoctor.facts.system.host import read_host

MIB_KB = 1024


def kind_of(value: object) -> str:
    """Why a leaf has no value."""
    assert isinstance(value, Missing), value
    return value.kind


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files by their absolute name under the root; text gets the newline that the kernel gives."""
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
    return root


def host_of(root: Path, files: Mapping[str, str | bytes]) -> Host:
    """The host that is read from these files, and from those that were there."""
    return read_host(write(root, files))


def link(root: Path, name: str, target: str) -> None:
    """A relative symbolic link from one absolute name to another, as sysfs has them."""
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(root / target.lstrip("/"), path.parent))


def config_space(acs_control: int | None = None, size: int = 4096) -> bytes:
    """Configuration space with an AER capability, then (unless None) ACS with that control register."""
    space = bytearray(4096)
    space[0:4] = struct.pack("<HH", 0x1000, 0xC010)
    following = 0x148 if acs_control is not None else 0
    space[0x100:0x104] = struct.pack("<I", 0x0001 | 1 << 16 | following << 20)
    if acs_control is not None:
        space[0x148:0x150] = struct.pack("<IHH", 0x000D | 1 << 16, 0x005F, acs_control)
    return bytes(space[:size])


def pci_device(
    root: Path,
    place: str,
    *,
    vendor: str = "0x10de",
    device: str = "0x2330",
    pci_class: str = "0x030200",
    link_now: tuple[str, str] | None = ("32.0 GT/s PCIe", "16"),
    link_max: tuple[str, str] | None = ("32.0 GT/s PCIe", "16"),
    driver: str | None = "nvidia",
    numa_node: str = "0",
    config: bytes | None = None,
    files: Mapping[str, str] | None = None,
) -> None:
    """A device at its place in the tree: `pci0000:00/0000:00:01.0/0000:01:00.0`."""
    folder = f"/sys/devices/{place}"
    bus_id = place.rpartition("/")[2]
    content: dict[str, str | bytes] = {
        "vendor": vendor,
        "device": device,
        "class": pci_class,
        "numa_node": numa_node,
        "config": config_space() if config is None else config,
        **(files or {}),
    }
    if link_now:
        content |= {"current_link_speed": link_now[0], "current_link_width": link_now[1]}
    if link_max:
        content |= {"max_link_speed": link_max[0], "max_link_width": link_max[1]}
    write(root, {f"{folder}/{name}": text for name, text in content.items()})
    if driver:
        link(root, f"{folder}/driver", f"/sys/bus/pci/drivers/{driver}")
    link(root, f"/sys/bus/pci/devices/{bus_id}", folder)


def iommu_group(root: Path, number: int, kind: str, bus_ids: Iterable[str] = ()) -> None:
    """A group of the IOMMU with its domain type, and the devices in it."""
    write(root, {f"/sys/kernel/iommu_groups/{number}/type": kind})
    for bus_id in bus_ids:
        place = (root / "sys/bus/pci/devices" / bus_id).resolve().relative_to(root.resolve())
        link(root, f"/{place}/iommu_group", f"/sys/kernel/iommu_groups/{number}")


def numa_node(root: Path, number: int, cpus: str, memory_mib: int, free_mib: int = 0) -> None:
    """A NUMA node with its CPUs and memory."""
    folder = f"/sys/devices/system/node/node{number}"
    meminfo = (
        f"Node {number} MemTotal:       {memory_mib * MIB_KB} kB\nNode {number} MemFree:        {free_mib * MIB_KB} kB"
    )
    write(root, {f"{folder}/cpulist": cpus, f"{folder}/meminfo": meminfo})


def meminfo(root: Path, total_mib: int, available_mib: int, swap_mib: int = 0) -> None:
    """/proc/meminfo, as short as the readers need it."""
    text = (
        f"MemTotal:       {total_mib * MIB_KB} kB\nMemFree:         1024 kB\n"
        f"MemAvailable:   {available_mib * MIB_KB} kB\nHugePages_Total:       0\nSwapTotal:  {swap_mib * MIB_KB} kB\n"
        f"SwapFree:   {swap_mib * MIB_KB} kB"
    )
    write(root, {"/proc/meminfo": text})


def rdma_port(
    root: Path,
    device: str = "mlx5_0",
    *,
    place: str = "pci0000:15/0000:15:01.0/0000:18:00.0",
    state: str = "4: ACTIVE",
    physical_state: str = "5: LinkUp",
    rate: str = "400 Gb/sec (4X NDR)",
    link_layer: str = "InfiniBand",
    link_downed: str | None = "0",
    driver: str = "mlx5_core",
) -> str:
    """An RDMA adapter with port 1, without counters if `link_downed` is None; its folder is given back."""
    pci_device(root, place, vendor="0x15b3", device="0x1021", pci_class="0x020700", driver=driver, numa_node="1")
    folder = f"/sys/class/infiniband/{device}"
    write(
        root,
        {
            f"{folder}/ports/1/state": state,
            f"{folder}/ports/1/phys_state": physical_state,
            f"{folder}/ports/1/rate": rate,
            f"{folder}/ports/1/link_layer": link_layer,
        },
    )
    if link_downed is not None:
        write(root, {f"{folder}/ports/1/counters/link_downed": link_downed})
    link(root, f"{folder}/device", f"/sys/devices/{place}")
    return folder
