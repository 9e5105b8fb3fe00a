"""The mount table of this process (/proc/self/mountinfo): which file system a path lies on. Touches no mount."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.sysfs import read_text

# File systems that hold no data of anybody: the kernel makes up what is read
PSEUDO = frozenset((
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "smackfs",
    "sysfs", "tracefs",
))  # fmt: skip
# those that answer without a server or a user's process; of others that are no block device's any may be silent
_OWN = frozenset((
    *(PSEUDO - {"autofs"}), "aufs", "bcachefs", "btrfs", "overlay", "ramfs", "rootfs", "tmpfs", "zfs",
))  # fmt: skip
_OCTAL = re.compile(r"\\([0-7]{3})")
_MAX_BYTES = 16 << 20  # a node of many containers has thousands of mounts


class Mount(msgspec.Struct, frozen=True):
    """One line of mountinfo: `device` is major:minor, `source` what was mounted.

    `options` are those of this mount, `system_options` those of the file system, whatever mounts of it there are.

    `top` is the folder of the file system that is seen at `point`: not "/" of a bind mount or a btrfs subvolume.
    `number` is the mount's own, `below` that of the mount which `point` lies on; 0 if they are not known.
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


def read_mounts(root: Path = Path("/")) -> tuple[Mount, ...] | Missing:
    """All mounts in the order in which they were made; a line of another form is left out."""
    text = read_text(root / "proc/self/mountinfo", _MAX_BYTES)
    if isinstance(text, Missing):
        return text
    return tuple(mount for line in text.split("\n") if (mount := _parsed(line)) is not None)


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that an absolute path without links lies on; None if the table has none.

    A walk down from the root, as the kernel walks: a mount below a folder that something else was mounted over later
    is in the table, and not on the way.
    """
    above = [mount for mount in mounts if _lies_in(path, mount.point)]
    numbers = {mount.number for mount in above}
    # what they lie on is not seen by this process: its root, and what a container was given
    begins = [mount for mount in above if mount.below not in numbers or mount.below == mount.number]
    found, ways = None, begins
    while ways:
        # the one that the walk meets first, of equals the last made
        found = min(reversed(ways), key=lambda mount: len(mount.point))
        above.remove(found)
        further = len(found.point)
        ways = [m for m in above if m.below == found.number or (m in begins and len(m.point) > further)]
    return found


def may_hang(mounts: Sequence[Mount] | Missing) -> bool:
    """Whether a look at some path may never return: a server, a user's process or the automounter answers for it."""
    if isinstance(mounts, Missing):
        return True
    return any(
        mount.fs_type == "fuseblk" or (mount.device.startswith("0:") and mount.fs_type not in _OWN) for mount in mounts
    )


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
        options=_options(fields[5]),
        system_options=_options(kind[2] if len(kind) > 2 else ""),
        device=fields[2],
        top=without_escapes(fields[3]),
        number=int(fields[0]) if fields[0].isdecimal() else 0,
        below=int(fields[1]) if fields[1].isdecimal() else 0,
    )


def _options(text: str) -> tuple[str, ...]:
    return tuple(option for option in text.split(",") if option)


def without_escapes(text: str) -> str:
    """A name of the mount table or of /etc/fstab, in which blanks and the like are written in octal: getmntent(3)."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
