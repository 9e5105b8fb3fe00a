"""The PCI bus from sysfs: NVIDIA devices, and every hop from a GPU up to the root port."""

from __future__ import annotations

import os
from typing import Literal

from gpudoctor.facts.model.gpu import PcieHop
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import PciBus, PciDevice, short_bus_id
from gpudoctor.facts.system.sysfs import (
    AnyPath,
    SysPath,
    link_name,
    list_names,
    missing_from,
    present,
    read_int,
    read_text,
)
from gpudoctor.lazy import lazy_pattern

DEVICES = "sys/bus/pci/devices"
BUS_ID = lazy_pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]")

_NVIDIA = 0x10DE
# VGA, 3D controller, and "other bridge", the class of an NVSwitch
_CLASSES = ("0x0300", "0x0302", "0x0680")
# PCIe base specification, Link Capabilities "Maximum Link Width"; it reads 63 from a device that does not answer
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
_SPEED = lazy_pattern(r"(\d+(?:\.\d+)?) GT/s")
# PCIe base specification: extended capability 0x000D, control register at +6
_ACS_ID = 0x000D
_ACS_REQUEST_REDIRECT = 0x4
_ACS_COMPLETION_REDIRECT = 0x8


def read_pci(root: AnyPath) -> PciBus:
    """NVIDIA's display, 3D and NVSwitch functions on the bus, by bus id, and the state of the IOMMU.

    Audio, USB and UCSI functions of a graphics card are left out. `driver` is None if none is
    bound; `numa_node` is None if the firmware names none (-1).
    """
    devices = _nvidia_devices(root)
    return PciBus(nvidia_devices=devices, iommu=_iommu(root, devices))


def read_path(root: AnyPath, bus_id: str) -> tuple[PcieHop, ...] | Missing:
    """Every PCIe device from the GPU (first) up to the root port (last).

    If a hypervisor or a container hides the bridges, the GPU is the only hop; link values that such a
    device does not have are `unsupported`. `bus_id` may be in NVML's or sysfs' form.
    """
    bus_id = short_bus_id(bus_id)
    link = root / DEVICES / bus_id
    if not BUS_ID.fullmatch(bus_id):
        return Missing(f"{bus_id[:40]!r} is not a PCI bus id", "failed")
    if not present(link):
        return Missing(f"{bus_id} is not in {root / DEVICES}", "absent")
    folder = SysPath(os.path.realpath(link))
    folders: list[AnyPath] = []
    while BUS_ID.fullmatch(folder.name):
        folders.append(folder)
        folder = folder.parent
    alone = len(folders) == 1
    return tuple(_hop(device, is_gpu=position == 0, alone=alone) for position, device in enumerate(folders))


def _nvidia_devices(root: AnyPath) -> tuple[PciDevice, ...] | Missing:
    names = list_names(root / DEVICES)
    if isinstance(names, Missing):
        return names
    found: list[PciDevice] = []
    for name in names:
        device = root / DEVICES / name
        if read_int(device / "vendor") != _NVIDIA:
            continue
        pci_class = read_text(device / "class")
        if isinstance(pci_class, Missing) or not pci_class.startswith(_CLASSES):
            continue
        found.append(
            PciDevice(
                bus_id=name,
                pci_class=pci_class,
                device_id=read_text(device / "device"),
                driver=link_name(device / "driver"),
                numa_node=read_numa_node(device),
                virtual_function=present(device / "physfn"),
            )
        )
    return tuple(found)


def read_numa_node(device: AnyPath) -> int | Missing | None:
    """The NUMA node of a device's sysfs folder; None if the firmware names none (-1)."""
    node = read_int(device / "numa_node")
    return None if isinstance(node, int) and node < 0 else node


def _iommu(
    root: AnyPath, devices: tuple[PciDevice, ...] | Missing
) -> Literal["off", "passthrough", "translated"] | Missing:
    """The mode of the groups that contain NVIDIA devices; without such devices, of all groups."""
    if isinstance(devices, Missing):
        return devices
    groups_folder = root / "sys/kernel/iommu_groups"
    names = list_names(groups_folder)
    if isinstance(names, Missing) and names.kind != "absent":
        return names
    if isinstance(names, Missing) or not names:
        return "off"
    own = [link_name(root / DEVICES / device.bus_id / "iommu_group") for device in devices]
    groups = {name for name in own if isinstance(name, str)} if devices else set(names)
    if not groups:
        return "off"  # there is an IOMMU, but none of its groups contains a GPU
    kinds = {group: read_text(groups_folder / group / "type") for group in sorted(groups)}
    if any((known(kind) or "").startswith("DMA") for kind in kinds.values()):
        return "translated"
    for group, kind in kinds.items():
        if isinstance(kind, Missing):
            return kind
        # a device passed to a guest (vfio) is unmanaged or blocked, independent of how this kernel uses the IOMMU
        if kind not in ("identity", "unmanaged", "blocked"):
            return Missing(f"IOMMU group {group} has the type {kind[:40]!r}", "failed")
    return "passthrough"


def _hop(device: AnyPath, *, is_gpu: bool, alone: bool) -> PcieHop:
    return PcieHop(
        bus_id=device.name,
        vendor_id=read_text(device / "vendor"),
        device_id=read_text(device / "device"),
        pci_class=read_text(device / "class"),
        speed_gt_s=_speed(device / "current_link_speed", alone),
        max_speed_gt_s=_speed(device / "max_link_speed", alone),
        width=_width(device / "current_link_width", alone),
        max_width=_width(device / "max_link_width", alone),
        aer_correctable=_aer_total(device / "aer_dev_correctable"),
        aer_nonfatal=_aer_total(device / "aer_dev_nonfatal"),
        aer_fatal=_aer_total(device / "aer_dev_fatal"),
        # not read from GPUs: one that fell off the bus makes every configuration read wait for a timeout
        acs_redirect=Missing("not a bridge", "unsupported") if is_gpu else _acs_redirect(device / "config"),
    )


def _no_link(path: AnyPath, reading: str, alone: bool) -> Missing:
    if alone:
        return Missing(f"{path.name} reads {reading!r}: the link is hidden by the hypervisor", "unsupported")
    return Missing(f"{path.name} reads {reading!r}", "failed")


def _speed(path: AnyPath, alone: bool) -> float | Missing:
    text = read_text(path)
    if isinstance(text, Missing):
        return text
    match = _SPEED.match(text)
    return float(match[1]) if match else _no_link(path, text[:40], alone)


def _width(path: AnyPath, alone: bool) -> int | Missing:
    width = read_int(path)
    if isinstance(width, Missing) or width in _WIDTHS:
        return width
    return _no_link(path, str(width), alone)


def _aer_total(path: AnyPath) -> int | Missing:
    """The TOTAL_ERR_* line if the kernel has one, else the sum of the counters."""
    text = read_text(path)
    if isinstance(text, Missing):
        return text
    counts: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if not value.isdecimal():
            return Missing(f"{path.name} reads {line[:40]!r}", "failed")
        counts[name] = int(value)
    if not counts:
        return Missing(f"{path.name} is empty", "failed")
    total = next((count for name, count in counts.items() if name.startswith("TOTAL_ERR")), None)
    return sum(counts.values()) if total is None else total


def _acs_redirect(config: AnyPath) -> bool | Missing:
    """Whether ACS redirects peer-to-peer traffic upstream; a bridge without the capability does not.

    The kernel shows the first 64 bytes to all users and the rest only to root; the extended
    capabilities start at byte 256.
    """
    try:
        file = os.open(config, os.O_RDONLY)
    except OSError as error:
        return missing_from(error, config.name)
    try:
        if not os.pread(file, 1, 64):
            return Missing("PCI configuration space beyond 64 bytes is for root only", "denied")
        if not os.pread(file, 4, 0x100):
            return Missing("no extended PCI configuration space", "absent")
        offset = 0x100
        for _ in range(64):
            header = int.from_bytes(os.pread(file, 4, offset), "little")
            if header == 0xFFFFFFFF:
                return Missing(f"{config.parent.name} does not answer on the bus", "failed")
            if header & 0xFFFF == _ACS_ID:
                control = int.from_bytes(os.pread(file, 2, offset + 6), "little")
                return bool(control & (_ACS_REQUEST_REDIRECT | _ACS_COMPLETION_REDIRECT))
            offset = header >> 20
            if offset < 0x100:
                return False
        return Missing("the list of PCI extended capabilities has no end", "failed")
    except OSError as error:
        return missing_from(error, config.name)
    finally:
        os.close(file)
