"""Worked patterns of faults in the file systems that training uses, and in the disks behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, StorageDevice, StorageMount
from gpudoctor.facts.simulated.edits import Pattern, Target


def is_local(mount: StorageMount) -> bool:
    return mount.storage_class in ("nvme", "disk", "raid")


def is_remote(mount: StorageMount) -> bool:
    return mount.storage_class in ("network", "parallel")


def has_wide_nvme(mount: StorageMount) -> bool:
    return any(_is_wide(disk) for disk in known(mount.devices) or ())


def _is_wide(disk: StorageDevice) -> bool:
    widths = [known(width) for width in (disk.width, disk.max_width, disk.slot_max_width)]
    return all(width is not None and width >= 2 for width in widths)


def _of_mounts(strikes: Callable[[StorageMount], bool], **leaves: Any) -> Pattern:
    def struck(node: Node, target: Target) -> Node:
        mounts = known(node.storage.mounts) or ()
        made = tuple(replace(mount, **leaves) if strikes(mount) else mount for mount in mounts)
        return replace(node, storage=replace(node.storage, mounts=made))

    return struck


def _narrow_nvme(node: Node, target: Target) -> Node:
    mounts = []
    for mount in known(node.storage.mounts) or ():
        disks = tuple(replace(disk, width=1) if _is_wide(disk) else disk for disk in known(mount.devices) or ())
        mounts.append(replace(mount, devices=disks or mount.devices))
    return replace(node, storage=replace(node.storage, mounts=tuple(mounts)))


def _no_answer(**leaves: Any) -> dict[str, Any]:
    why = Missing("did not answer within 5 s", "failed")
    return {**dict.fromkeys(("total_bytes", "free_bytes", "inodes", "inodes_free"), why), "error": why, **leaves}


def _not_mounted(node: Node, target: Target) -> Node:
    """The remote file systems are gone, and their paths lie on the root."""
    mounts = known(node.storage.mounts) or ()
    lost = tuple(
        replace(path, is_mount=False, not_mounted=mount.point)
        for mount in mounts
        if is_remote(mount)
        for path in mount.paths
    )
    kept = tuple(
        replace(mount, paths=(*mount.paths, *lost)) if mount.point == "/" else mount
        for mount in mounts
        if not is_remote(mount)
    )
    return replace(node, storage=replace(node.storage, mounts=kept))


STORAGE_PATTERNS: dict[str, Pattern] = {
    "storage-full": _of_mounts(is_local, free_bytes=0),
    "storage-nearly-full": _of_mounts(is_local, free_bytes=3 << 30),
    "inodes-used-up": _of_mounts(is_local, inodes_free=0),
    "nvme-narrow": _narrow_nvme,
    "stale-nfs": _of_mounts(is_remote, **_no_answer(error="Stale file handle (ESTALE)")),
    "storage-hang": _of_mounts(is_remote, **_no_answer()),
    "storage-shutdown": _of_mounts(is_local, options=("rw", "relatime", "shutdown")),
    "storage-read-only": _of_mounts(is_local, system_read_only=True),
    "not-mounted": _not_mounted,
}
