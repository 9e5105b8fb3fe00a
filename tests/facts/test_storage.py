"""The reader of storage against a fake /proc and /sys, real folders for statvfs, and a mount that hangs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Storage, StorageMount
from gpudoctor.facts.system.mounts import Mount, mount_of, read_mounts
from gpudoctor.facts.system.path_status import PathQuestion, PathStatus
from gpudoctor.facts.system.storage import StorageReader
from tests.narrowed import missing, present
from tests.sysfs_tree import link, pci_device, write

MOUNTINFO = """27 1 254:0 / / rw,relatime - ext4 /dev/nvme0n1p1 rw,errors=remount-ro
28 27 0:40 / /data\\040sets ro,relatime shared:3 - nfs4 filer:/sets rw,vers=4.2,nconnect=8
29 27 0:41 / /s3 rw,nosuid - fuse mountpoint-s3 rw,user_id=0
30 27 9:1 / /raid rw - xfs /dev/md1 rw
31 27 0:42 / /layers rw - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d
33 27 9:1 / /deep/inner rw - xfs /dev/md1 rw
34 27 252:0 / /swap-like rw - ext4 /dev/zram0 rw
32 27 0:22 / /sys rw - sysfs sysfs rw
a line of another form"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    write(root, {"/proc/self/mountinfo": MOUNTINFO, "/proc/meminfo": "MemTotal: 16 kB\nCached:    8 kB"})
    for folder in ("data sets/imagenet", "s3", "raid", "layers", "swap-like", "home/x", "tmp", "deep/inner"):
        (root / folder).mkdir(parents=True)
    link_of = {"link_now": ("2.5 GT/s PCIe", "1"), "link_max": ("16.0 GT/s PCIe", "4")}
    pci_device(root, "pci0000:40/0000:40:01.0", pci_class="0x060400", link_max=("32.0 GT/s PCIe", "8"))
    pci_device(root, "pci0000:40/0000:40:01.0/0000:41:00.0", pci_class="0x010802", **link_of)  # type: ignore[arg-type]
    disk = "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/nvme/nvme0/nvme0n1"
    write(root, {f"{disk}/queue/rotational": "0", f"{disk}/queue/scheduler": "[none] mq-deadline"})
    write(root, {f"{disk}/nvme0n1p1/partition": "1", f"{disk}/../state": "live"})
    link(root, "/sys/dev/block/254:0", f"{disk}/nvme0n1p1")
    write(root, {"/sys/devices/virtual/block/md1/md/level": "raid0"})
    for name in ("sda", "sdb"):
        write(root, {f"/sys/devices/{name}/queue/rotational": "1"})
        link(root, f"/sys/devices/virtual/block/md1/slaves/{name}", f"/sys/devices/{name}")
    write(root, {"/sys/devices/virtual/block/zram0/queue/rotational": "0"})
    link(root, "/sys/dev/block/252:0", "/sys/devices/virtual/block/zram0")
    link(root, "/sys/dev/block/9:1", "/sys/devices/virtual/block/md1")
    return root


def read(root: Path, *data: str, **environ: str) -> Storage:
    with StorageReader(root, environ, data) as reader:
        return reader.read()


def mounts(storage: Storage) -> dict[str, StorageMount]:
    return {mount.point: mount for mount in present(storage.mounts)}


def test_each_path_is_found_on_its_mount_with_its_class_and_room(root: Path) -> None:
    storage = read(
        root, "/data sets/imagenet", "/s3", "/raid", "/swap-like", HOME="/home/x", HF_HOME="/layers/cache/hf"
    )
    found = mounts(storage)
    assert {point: mount.storage_class for point, mount in found.items()} == {
        "/data sets": "network", "/s3": "object", "/raid": "raid", "/layers": "overlay", "/": "nvme",
        "/swap-like": "memory",
    }  # fmt: skip
    sets, system = found["/data sets"], found["/"]
    assert (sets.source, sets.read_only, sets.system_read_only, sets.error) == ("filer:/sets", True, False, None)
    assert sets.options == ("ro", "relatime", "rw", "vers=4.2", "nconnect=8")
    assert found["/layers"].options == ("rw",)
    assert 0 < present(sets.free_bytes) <= present(sets.total_bytes)
    assert [(path.path, path.roles, path.is_mount) for path in sets.paths] == [
        ("/data sets/imagenet", ("--data",), False)
    ]
    assert ("HOME",) in [path.roles for path in system.paths]
    # a cache that does not exist yet: the folder above it is examined
    assert [(path.path, path.is_mount, path.writable) for path in found["/layers"].paths] == [
        ("/layers/cache/hf", False, True)
    ]
    assert storage.page_cache_bytes == 8192


def test_the_disks_behind_a_mount_are_told_down_to_the_link(root: Path) -> None:
    found = mounts(read(root, "/raid", HOME="/home/x"))
    [disk] = found["/"].devices  # type: ignore[misc]
    assert (disk.name, disk.rotational, disk.scheduler, disk.controller_state) == ("nvme0n1", False, "none", "live")
    assert (disk.bus_id, disk.width, disk.max_width, disk.slot_max_width) == ("0000:41:00.0", 1, 4, 8)
    assert (disk.speed_gt_s, disk.max_speed_gt_s, disk.slot_max_speed_gt_s) == (2.5, 16.0, 32.0)
    raid = present(found["/raid"].devices)
    assert [(each.name, each.rotational) for each in raid] == [("sda", True), ("sdb", True)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("filer:/x /home nfs defaults 0 0", "/home"),
        ("filer:/x /ho\\155e nfs defaults 0 0", "/home"),
        ("filer:/x /home nfs noauto 0 0", None),
        ("# filer:/x /home nfs defaults 0 0", None),
        ("filer:/x /raid nfs defaults 0 0", None),
        ("filer:/x /deep nfs defaults 0 0", None),
        ("/dev/sdb1 / ext4 defaults 0 0", None),
    ],
)
def test_a_mount_that_fstab_has_and_the_kernel_has_not_is_told(root: Path, line: str, expected: str | None) -> None:
    write(root, {"/etc/fstab": line})
    found = mounts(read(root, "/raid", "/deep/inner", HOME="/home/x"))
    assert [path.not_mounted for path in found["/"].paths if "HOME" in path.roles] == [expected]
    lower = [path.not_mounted for mount in (found["/raid"], found["/deep/inner"]) for path in mount.paths]
    assert lower == [None, None], "what is mounted further down does not lie on the folder"


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ESTALE, "Stale file handle (ESTALE)"),
        (errno.ENOTCONN, "Transport endpoint is not connected (ENOTCONN)"),
        (errno.EACCES, Missing("Permission denied (EACCES)", "denied")),
        (errno.ELOOP, Missing("Too many levels of symbolic links (ELOOP)", "denied")),
        (errno.ENOENT, None),
    ],
)
def test_a_broken_mount_is_told_from_a_name_that_leads_nowhere(
    number: int, error: object, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = PathStatus(place=0, error=number, resolved=str(root / "raid") if number == errno.ENOENT else "")
    monkeypatch.setattr(PathQuestion, "answers", lambda self: (answer,) * len(self._paths))
    assert mounts(read(root, "/raid"))["/raid"].error == error


def test_without_a_mount_table_the_reason_stands_and_no_process_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("gpudoctor.process.spawn.Child", refuse)
    monkeypatch.setattr("gpudoctor.facts.system.path_status.may_hang", lambda *_: False)  # whatever is mounted here
    assert missing(read(tmp_path, "/data").mounts).kind == "absent"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"properties": {"allow_compat_mode": true}}', True),
        ('// "allow_compat_mode": true\n{"allow_compat_mode" : false}', False),
        ("{}", None),
    ],
)
def test_gpudirect_storage_is_told(root: Path, config: str, expected: bool | None) -> None:
    write(root, {"/etc/cufile.json": config, "/sys/module/nvidia_fs/version": "2.0"})
    storage = read(root)
    assert (storage.nvidia_fs_loaded, storage.cufile_config) == (True, "/etc/cufile.json")
    assert (None if isinstance(storage.cufile_compat_mode, Missing) else storage.cufile_compat_mode) is expected


def test_a_cufile_configuration_that_cannot_be_read_keeps_nobody_waiting(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(root / "pipe")
    piped = read(root, CUFILE_ENV_PATH_JSON="/pipe")
    assert piped.cufile_config == "/pipe"
    assert piped.cufile_compat_mode == Missing("/pipe is a FIFO, not a file", "failed")
    silent = Missing("did not answer within 5 s", "failed")
    monkeypatch.setattr(PathQuestion, "answers", lambda question: (silent,) * len(question._paths))
    dead = read(root, CUFILE_ENV_PATH_JSON="/pipe")
    assert (dead.cufile_config, dead.cufile_compat_mode) == (silent, silent)


def test_the_last_mount_on_the_way_to_a_path_wins(root: Path) -> None:
    hidden = """
40 27 0:60 / /a rw - tmpfs first rw
41 40 0:61 / /a/sub rw - tmpfs hidden rw
42 40 0:62 / /a rw - tmpfs over-the-first rw
50 99 0:63 / /given/by/a/container rw - xfs given rw
60 27 0:64 / /odd\x0cname rw - tmpfs odd rw"""
    write(root, {"/proc/self/mountinfo": MOUNTINFO + hidden})
    table = present(read_mounts(root))
    for path, source in (("/a/sub/x", "over-the-first"), ("/given/by/a/container/x", "given"),
                         ("/given", "/dev/nvme0n1p1"), ("/deep/inner", "/dev/md1"),
                         ("/odd\x0cname", "odd")):  # fmt: skip
        assert present(mount_of(path, table)).source == source, path
    over = Mount("/raid", "tmpfs", "tmpfs", ("rw",), (), "0:99")
    assert (mount_of("/raidx", table) or over).point == "/"
    assert mount_of("/raid/x", (*table, over)) is over
