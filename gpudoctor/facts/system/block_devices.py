"""The disks behind a file system, from /sys: through partitions, md and device mapper down to the hardware."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import StorageDevice
from gpudoctor.facts.system.mounts import Mount
from gpudoctor.facts.system.pci import BUS_ID, read_path
from gpudoctor.facts.system.sysfs import list_names, present, read_int, read_match, read_text

_DEVICE = re.compile(r"[1-9]\d{0,5}:\d{1,7}")  # 0:N is not a block device: the file system made it up
_NAME = re.compile(r"/dev/([\w!.-]{1,64})")
_CONTROLLER = re.compile(r"nvme\d+")
_CHOSEN = re.compile(r"\[([\w-]{1,32})\]")  # none [mq-deadline] kyber
RAM_DISK = re.compile(r"z?ram\d{1,7}")  # by name
_MAX_DEPTH = 6  # partition, LVM, dm-crypt, md, multipath: real stacks are not deeper


def read_devices(mount: Mount, root: Path) -> tuple[StorageDevice, ...] | Missing:
    """The disks of a mount, by name; Missing (absent) for a file system that has none, or does not name them."""
    folder = _folder(mount, root)
    if folder is None:
        return Missing(f"{mount.fs_type} tells no block device of its own", "absent")
    leaves = dict.fromkeys(_leaves(folder, _MAX_DEPTH))
    return tuple(_device(leaf, root) for leaf in sorted(leaves))


def _folder(mount: Mount, root: Path) -> Path | None:
    if _DEVICE.fullmatch(mount.device) and present(root / "sys/dev/block" / mount.device):
        return _real(root / "sys/dev/block" / mount.device)
    # btrfs makes up its device number, but names a disk as its source
    named = _NAME.fullmatch(mount.source)
    path = root / "sys/class/block" / named[1] if named is not None else None
    return _real(path) if path is not None and present(path) else None


def _leaves(folder: Path, depth: int) -> Iterator[Path]:
    if present(folder / "partition"):
        folder = folder.parent
    below = known(list_names(folder / "slaves")) or ()
    if not below or depth == 0:
        yield folder
    for name in below:
        yield from _leaves(_real(folder / "slaves" / name), depth - 1)


def _device(folder: Path, root: Path) -> StorageDevice:
    rotational = read_int(folder / "queue/rotational")
    on_bus = _pci_function(folder)
    disk = StorageDevice(
        name=folder.name,
        rotational=rotational if isinstance(rotational, Missing) else rotational == 1,
        scheduler=read_match(folder / "queue/scheduler", _CHOSEN),
    )
    if not folder.name.startswith("nvme") or on_bus is None:
        return disk
    controller, bus_id = on_bus
    disk = replace(disk, bus_id=bus_id, controller_state=read_text(controller / "state"))
    hops = read_path(root, bus_id)
    if isinstance(hops, Missing):
        return replace(disk, width=hops, max_width=hops, speed_gt_s=hops, max_speed_gt_s=hops)
    own, slot = hops[0], hops[1] if len(hops) > 1 else None
    hidden = Missing("the bridge above it is hidden", "unsupported")
    return replace(
        disk,
        width=own.width,
        max_width=own.max_width,
        speed_gt_s=own.speed_gt_s,
        max_speed_gt_s=own.max_speed_gt_s,
        slot_max_width=slot.max_width if slot else hidden,
        slot_max_speed_gt_s=slot.max_speed_gt_s if slot else hidden,
    )


def _pci_function(folder: Path) -> tuple[Path, str] | None:
    """The folder of an NVMe disk's controller, and its bus id; None if it has none, or several (multipath)."""
    above = [parent for parent in folder.parents if _CONTROLLER.fullmatch(parent.name)]
    if not above:
        # native multipath: the disk's folder is in its subsystem, next to links to its controllers
        names = known(list_names(folder.parent)) or ()
        above = [_real(folder.parent / name) for name in names if _CONTROLLER.fullmatch(name)]
    if len(above) != 1:
        return None
    bus_id = next((parent.name for parent in above[0].parents if BUS_ID.fullmatch(parent.name)), None)
    return None if bus_id is None else (above[0], bus_id)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
