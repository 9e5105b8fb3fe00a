"""Helpers of the storage checks: kinds of mounts, and their names in text."""

from __future__ import annotations

from gpudoctor.checks.core.finding import Evidence
from gpudoctor.checks.core.subject import Subject, of_path
from gpudoctor.facts.model.storage import StorageMount
from gpudoctor.units import GIB, MIB, gib_text, mib_text

DATA = "--data"  # the role of a path that the user named
# local to one machine: their reported size is right, and no other node fills them
LOCAL = ("nvme", "disk", "raid", "overlay", "memory")
_CLASS_WORDS = {
    "nvme": "local NVMe",
    "disk": "local disk",
    "raid": "several local disks",
    "network": "network",
    "parallel": "parallel file system",
    "object": "FUSE before an object store",
    "fuse": "FUSE",
    "overlay": "layers of a container",
    "memory": "in RAM",
    "other": "kind not known",
}


def subject_of(mount: StorageMount) -> Subject:
    return of_path(mount.point)


def is_data(mount: StorageMount) -> bool:
    """Whether the user named a path on it as data."""
    return any(DATA in path.roles for path in mount.paths)


def used_for(mount: StorageMount) -> str:
    """The roles for which it is checked: "HOME, TMPDIR"."""
    return ", ".join(dict.fromkeys(role for path in mount.paths for role in path.roles))


def mount_evidence(mount: StorageMount) -> Evidence:
    """Its line of the mount table, with at most 12 options."""
    options = ",".join(mount.options[:12])
    words = f"{mount.source} on {mount.point} type {mount.fs_type} ({options}): {class_words(mount)}"
    return Evidence("/proc/self/mountinfo", f"{words}; used as {used_for(mount)}")


def class_words(mount: StorageMount) -> str:
    return _CLASS_WORDS[mount.storage_class]


def bytes_text(size_bytes: float) -> str:
    return gib_text(size_bytes) if size_bytes >= GIB else mib_text(round(size_bytes / MIB) * MIB)
