from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.storage import Storage, StorageDevice, StorageMount, StoragePath
from tests.checks.one_check import expect, finds, judge

GIB = 1 << 30
HOME = StoragePath("/home/x", ("HOME",), is_mount=False, writable=True)
DATA = StoragePath("/data", ("--data",), is_mount=True, writable=True)
ROOT = StorageMount(
    *("/", "ext4", "disk", "/dev/sda1", ("rw",)), paths=(HOME,), error=None, total_bytes=500 * GIB,
    free_bytes=200 * GIB, inodes=10**7, inodes_free=10**6, devices=(),
)  # fmt: skip
NVME = StorageDevice(
    *("nvme0n1", False, "none", "0000:41:00.0", "live"), width=4, max_width=4, speed_gt_s=16.0, max_speed_gt_s=16.0,
    slot_max_width=4, slot_max_speed_gt_s=16.0,
)  # fmt: skip
CHANCE = StoragePath("/mnt/usb", ("working directory",), is_mount=True, writable=True)
HUNG = Missing("did not answer within 5 s", "failed")


def of(check: str, **leaves: Any) -> CheckResult:
    return judge(f"storage.{check}", Node(storage=Storage(mounts=(replace(ROOT, **leaves),))))


@pytest.mark.parametrize(
    ("leaves", "status"),
    [
        ({}, Status.PASS),
        ({"free_bytes": 0}, Status.FAIL),
        ({"free_bytes": (64 << 20) - 1}, Status.FAIL),
        ({"free_bytes": 64 << 20}, Status.WARN),
        ({"free_bytes": 10 * GIB - 1}, Status.WARN),
        ({"free_bytes": 10 * GIB}, Status.PASS),
        ({"free_bytes": 2 * GIB, "total_bytes": 2 * GIB, "storage_class": "memory"}, Status.PASS),
        ({"free_bytes": 30 << 20, "total_bytes": 32 << 20, "storage_class": "memory"}, Status.WARN),
        ({"free_bytes": 0, "total_bytes": 32 << 20, "storage_class": "memory"}, Status.FAIL),
        ({"free_bytes": 0, "total_bytes": 88 << 20, "paths": (CHANCE,)}, Status.WARN),
        ({"free_bytes": 0, "paths": (CHANCE,)}, Status.FAIL),
        ({"free_bytes": 0, "fs_type": "nfs4", "storage_class": "network"}, Status.WARN),
        ({"inodes_free": 0}, Status.FAIL),
        ({"inodes_free": 9_999}, Status.WARN),
        ({"inodes_free": 0, "storage_class": "parallel"}, Status.WARN),
        ({"inodes": None, "inodes_free": Missing("none", "unsupported")}, Status.PASS),
        ({"inodes": 5_000, "inodes_free": 4_000}, Status.PASS),
        ({"free_bytes": 0, "paths": (replace(HOME, writable=False),)}, Status.SKIP),
        ({"free_bytes": 0, "paths": (DATA,)}, Status.SKIP),
        ({"free_bytes": HUNG, "total_bytes": HUNG, "error": HUNG, "paths": (replace(HOME, writable=HUNG),)},
         Status.UNKNOWN),
        ({"free_bytes": Missing("no size", "unsupported"), "total_bytes": Missing("no size", "unsupported")},
         Status.SKIP),
    ],
)  # fmt: skip
def test_room_is_judged_where_something_is_written(leaves: dict[str, Any], status: Status) -> None:
    assert of("space", **leaves).status is status


@pytest.mark.parametrize(
    ("leaves", "status", "word"),
    [
        ({}, Status.PASS, "ext4"),
        ({"error": "Stale file handle (ESTALE)", "fs_type": "nfs4"}, Status.FAIL, "stale handle"),
        (
            {"error": "Transport endpoint is not connected (ENOTCONN)", "storage_class": "fuse"},
            Status.FAIL,
            "server is gone",
        ),
        ({"error": "Input/output error (EIO)"}, Status.FAIL, "the disk has failed"),
        ({"error": HUNG}, Status.UNKNOWN, "within 5 s"),
        ({"error": Missing("Permission denied (EACCES)", "denied")}, Status.SKIP, "Permission"),
        ({"options": ("rw", "emergency_ro")}, Status.FAIL, "shut itself down"),
        ({"system_read_only": True}, Status.WARN, "read-only"),
        ({"system_read_only": True, "read_only": True}, Status.PASS, "ext4"),
        ({"system_read_only": True, "fs_type": "squashfs"}, Status.PASS, "squashfs"),
        ({"storage_class": "overlay", "fs_type": "overlay"}, Status.PASS, "overlay"),
        ({"storage_class": "overlay", "fs_type": "overlay", "paths": (DATA,)}, Status.WARN, "layers"),
        ({"paths": (HOME, replace(DATA, not_mounted="/data"))}, Status.WARN, "/data is not mounted"),
        ({"paths": (replace(HOME, roles=("TMPDIR",), writable=False),)}, Status.WARN, "may not be written to"),
        ({"paths": (replace(HOME, writable=False),)}, Status.PASS, "ext4"),
        ({"devices": (NVME,)}, Status.PASS, "ext4"),
        ({"devices": (replace(NVME, width=1),)}, Status.WARN, "nvme0n1 runs at x1"),
        ({"devices": (replace(NVME, speed_gt_s=2.5),)}, Status.WARN, "2.5 GT/s"),
        ({"devices": (replace(NVME, width=2, slot_max_width=2),)}, Status.PASS, "ext4"),
        ({"devices": (replace(NVME, speed_gt_s=8.0, slot_max_speed_gt_s=8.0),)}, Status.PASS, "ext4"),
        ({"devices": (replace(NVME, width=1, slot_max_width=Missing("hidden")),)}, Status.PASS, "ext4"),
        ({"devices": (replace(NVME, controller_state="resetting"),)}, Status.WARN, "resetting"),
    ],
)
def test_a_mount_is_judged_by_what_it_answers_and_what_lies_behind_it(
    leaves: dict[str, Any], status: Status, word: str
) -> None:
    expect(of("mount", **leaves), status, word)


def test_a_tmpdir_on_a_broken_mount_is_one_finding() -> None:
    lost = replace(HOME, roles=("TMPDIR",), writable=False)
    finds(of("mount", error="Input/output error (EIO)", paths=(lost,)).findings, Status.FAIL)


@pytest.mark.parametrize("check", ["storage.mount", "storage.space"])
@pytest.mark.parametrize(("kind", "status"), [("failed", Status.UNKNOWN), ("absent", Status.SKIP)])
def test_a_mount_table_that_was_not_read_is_no_pass(check: str, kind: Any, status: Status) -> None:
    assert judge(check, Node(storage=Storage(mounts=Missing("mountinfo", kind)))).status is status
