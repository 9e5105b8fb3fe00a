"""The mount table of this process (/proc/self/mountinfo), and the disks behind a mount. Accesses no mount."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.model.missing import Missing, if_known, known
from gpudoctor.facts.model.storage import StorageDevice
from gpudoctor.facts.system.pci import BUS_ID, read_path
from gpudoctor.facts.system.sysfs import ROOT, AnyPath, SysPath, list_names, present, read_int, read_match, read_text
from gpudoctor.lazy import lazy_pattern

# File systems without user data: the kernel generates their content
PSEUDO = frozenset((
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "smackfs",
    "sysfs", "tracefs",
))  # fmt: skip
# file systems without a disk that answer without a server or a user-space process. Any other may hang, except
# the disk of "/", without which no program could run
_OWN = frozenset((*(PSEUDO - {"autofs"}), "aufs", "overlay", "ramfs", "rootfs", "tmpfs"))
# on disks, but with made-up device numbers: a suspended pool hangs like a dead disk
_POOLS = ("bcachefs", "btrfs", "zfs")
_OCTAL = lazy_pattern(r"\\([0-7]{3})")
_MOST_LINKS = 40  # as in the kernel (MAXSYMLINKS)
_MAX_BYTES = 16 << 20  # a node of many containers has thousands of mounts
_DEVICE = lazy_pattern(r"[1-9]\d{0,5}:\d{1,7}")  # 0:N is not a block device: the file system made it up
_NAME = lazy_pattern(r"/dev/([\w!.-]{1,64})")
_CONTROLLER = lazy_pattern(r"nvme\d+")
_CHOSEN = lazy_pattern(r"\[([\w-]{1,32})\]")  # none [mq-deadline] kyber
RAM_DISK = lazy_pattern(r"z?ram\d{1,7}")  # by name
_MAX_DEPTH = 6  # partition, LVM, dm-crypt, md, multipath: real stacks are not deeper


class Mount(msgspec.Struct, frozen=True):
    """One line of mountinfo: `device` is major:minor, `source` what was mounted.

    `options` are those of this mount, `system_options` those of the file system, shared by all its mounts.

    `top` is the folder of the file system that is mounted at `point`: not "/" for a bind mount or a btrfs subvolume.
    `number` is the mount id, `below` that of the mount which `point` is on; 0 if they are not known.
    """

    point: str
    fs_type: str
    source: str
    options: tuple[str, ...]
    system_options: tuple[str, ...]
    device: str
    top: str = "/"
    number: int = 0
    below: int = 0


def read_mounts(root: AnyPath = ROOT) -> tuple[Mount, ...] | Missing:
    """All mounts in the order in which they were made; lines that cannot be parsed are left out."""
    text = read_text(root / "proc/self/mountinfo", _MAX_BYTES)
    return if_known(text, lambda text: tuple(filter(None, map(_parsed, text.split("\n")))))


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that an absolute path without symbolic links is on; None if the table has none.

    Walks down from the root like the kernel: a mount that was later hidden by a mount above it is still in the table,
    but not on the path.
    """
    above = [mount for mount in mounts if _lies_in(path, mount.point)]
    numbers = {mount.number for mount in above}
    # their parent mount is not visible to this process: its root, and volumes of a container
    begins = [mount for mount in above if mount.below not in numbers or mount.below == mount.number]
    found, ways = None, begins
    while ways:
        # the one nearest to the root; of several at one point, the last one made
        found = min(reversed(ways), key=lambda mount: len(mount.point))
        above.remove(found)
        further = len(found.point)
        ways = [m for m in above if m.below == found.number or (m in begins and len(m.point) > further)]
    return found


def may_hang(path: str, mounts: Sequence[Mount] | Missing) -> bool:
    """Whether a stat of `path` may never return, because it leads through a mount that may hang.

    Such a mount is served by a server, a user-space process or the automounter, or is on another disk than "/", which
    may be failing. Follows the path step by step, with symbolic links, and stops before the first such mount. A link in
    /proc may lead to the mounts of another container, which are not in this table, so it counts as one.
    """
    if isinstance(mounts, Missing) or not path.startswith("/"):
        return True
    silent = _may_be_silent(mounts)
    procs = [mount.point for mount in mounts if mount.fs_type == "proc"]
    here, links = "", 0
    ahead = path.split("/")[::-1]
    while ahead:
        if (here or "/") in silent:
            return True
        name = ahead.pop()
        if name in ("", "."):
            continue
        if not _is_text(name):  # the table was decoded with replacement characters
            return True
        above, here = here, here.rpartition("/")[0] if name == ".." else f"{here}/{name}"
        if name == ".." or here in silent:
            continue
        link = _target_of(here)
        if link is None:
            continue
        if any(_lies_in(here, point) for point in procs):
            return True
        links += 1
        if links > _MOST_LINKS:
            return False
        here = "" if link.startswith("/") else above
        ahead += link.split("/")[::-1]
    return (here or "/") in silent


def _may_be_silent(mounts: Sequence[Mount]) -> set[str]:
    """Where a stat may not return: mounts of other kinds than the kernel's own, on another disk than "/"."""
    # of two mounts at one point the last one is visible
    at = {mount.point: mount for mount in mounts}
    top = at.get("/")
    disk = top.device if top is not None and (top.fs_type in _POOLS or not top.device.startswith("0:")) else None
    return {point for point, mount in at.items() if mount.fs_type not in _OWN and mount.device != disk}


def _target_of(path: str) -> str | None:
    """Where a symbolic link leads; None if it is none, or does not exist."""
    try:
        return os.readlink(path)  # keeps bytes that are not text as they are
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None


def _is_text(name: str) -> bool:
    """Whether all its bytes were UTF-8."""
    return not any("\udc80" <= letter <= "\udcff" for letter in name)


def _lies_in(path: str, point: str) -> bool:
    return point == "/" or path == point or path.startswith(f"{point}/")


def _parsed(line: str) -> Mount | None:
    # proc(5): id parent major:minor root point options [optional ...] - type source super-options
    left, dash, right = line.partition(" - ")
    fields, kind = left.split(" "), right.split(" ")
    if not dash or len(fields) < 6 or len(kind) < 2:
        return None
    return Mount(
        point=without_escapes(fields[4]),
        fs_type=kind[0],
        source=without_escapes(kind[1]),
        options=tuple(filter(None, fields[5].split(","))),
        system_options=tuple(filter(None, kind[2].split(","))) if len(kind) > 2 else (),
        device=fields[2],
        top=without_escapes(fields[3]),
        number=int(fields[0]) if fields[0].isdecimal() else 0,
        below=int(fields[1]) if fields[1].isdecimal() else 0,
    )


def without_escapes(text: str) -> str:
    """Decode the octal escapes for blanks and the like in the mount table and /etc/fstab: getmntent(3)."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text) if "\\" in text else text


# The disks behind a file system, from /sys: through partitions, md and device mapper down to the hardware


def read_devices(mount: Mount, root: AnyPath) -> tuple[StorageDevice, ...] | Missing:
    """The disks of a mount, by name; Missing (absent) for a file system that has none, or does not name them."""
    folder = _folder(mount, root)
    if folder is None:
        return Missing(f"{mount.fs_type} tells no block device of its own", "absent")
    leaves = dict.fromkeys(_leaves(folder, _MAX_DEPTH))
    return tuple(_device(leaf, root) for leaf in sorted(leaves))


def _folder(mount: Mount, root: AnyPath) -> AnyPath | None:
    if _DEVICE.fullmatch(mount.device) and present(root / "sys/dev/block" / mount.device):
        return _real(root / "sys/dev/block" / mount.device)
    # btrfs makes up its device number, but names a disk as its source
    named = _NAME.fullmatch(mount.source)
    path = root / "sys/class/block" / named[1] if named is not None else None
    return _real(path) if path is not None and present(path) else None


def _leaves(folder: AnyPath, depth: int) -> Iterator[AnyPath]:
    if present(folder / "partition"):
        folder = folder.parent
    below = known(list_names(folder / "slaves")) or ()
    if not below or depth == 0:
        yield folder
    for name in below:
        yield from _leaves(_real(folder / "slaves" / name), depth - 1)


def _device(folder: AnyPath, root: AnyPath) -> StorageDevice:
    on_bus = _pci_function(folder)
    disk = StorageDevice(
        name=folder.name,
        rotational=if_known(read_int(folder / "queue/rotational"), lambda number: number == 1),
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


def _pci_function(folder: AnyPath) -> tuple[AnyPath, str] | None:
    """The folder of an NVMe disk's controller, and its bus id; None if it has none, or several (multipath)."""
    above = [parent for parent in _parents(folder) if _CONTROLLER.fullmatch(parent.name)]
    if not above:
        # native multipath: the disk's folder is in its subsystem, next to links to its controllers
        names = known(list_names(folder.parent)) or ()
        above = [_real(folder.parent / name) for name in names if _CONTROLLER.fullmatch(name)]
    if len(above) != 1:
        return None
    bus_id = next((parent.name for parent in _parents(above[0]) if BUS_ID.fullmatch(parent.name)), None)
    return None if bus_id is None else (above[0], bus_id)


def _parents(folder: AnyPath) -> Iterator[AnyPath]:
    while (above := folder.parent) != folder:
        yield (folder := above)


def _real(path: AnyPath) -> SysPath:
    return SysPath(os.path.realpath(path))
