"""Reading real files past the page cache: what is measured, what does not count as a disk, and what is left behind."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from acceptance.children import marked_processes
from gpudoctor.facts.model.measured_hardware import StorageRead
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.mounts import Mount
from gpudoctor.probes.storage import page_cache
from gpudoctor.probes.storage.listing import DataFile, listed, mostly_holes
from gpudoctor.probes.storage.measure import read_paths
from gpudoctor.probes.storage.page_cache import cold, may_stay_in_ram
from gpudoctor.probes.storage.read_child import NothingToReadError, made_in
from gpudoctor.probes.storage.readers import Piece, ReadersStuckError, pieces_of, read_at_once
from tests.narrowed import missing
from tests.needs import missing as not_on_this_machine
from tests.needs import needs
from tests.subprocesses import completed

MIB = 1 << 20


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "below").mkdir(parents=True)
    (folder / "shard.bin").write_bytes(os.urandom(8 * MIB))
    for number in range(20):
        (folder / "below" / f"{number}.jpg").write_bytes(os.urandom(30_000))
    (folder / "empty").touch()
    (folder / "link").symlink_to("shard.bin")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    return folder


def read_one(
    path: Path, *, own_file: bool = False, readers: tuple[int, ...] = (1, 2), seconds: float = 0.05
) -> StorageRead:
    [read] = read_paths([StorageRead(str(path), own_file)], readers, seconds=seconds)
    return read


def failed(path: Path, *, own_file: bool = False) -> Missing:
    """Why nothing of it was read."""
    read = read_one(path, own_file=own_file)
    assert read.rates == ()
    return missing(read.failure)


def state(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*"))


def test_the_users_files_are_read_in_both_patterns_and_nothing_is_written(data: Path) -> None:
    before = state(data)
    read = read_one(data)
    assert read.failure is None
    assert [(rate.pattern, rate.readers) for rate in read.rates] == [
        ("sequential", 1), ("sequential", 2), ("random", 1), ("random", 2),
    ]  # fmt: skip
    assert all(rate.gb_s > 0 and rate.reads > 0 and rate.p99_us >= rate.p50_us > 0 for rate in read.rates)
    # the shard and 20 small files: no FIFO, no empty file, no loop, and the shard's link is no second file
    assert (read.files, read.bytes_found) == (21, 8 * MIB + 20 * 30_000)
    assert not isinstance(read.opens_per_s, Missing)
    assert state(data) == before


def test_a_file_is_read_to_its_end_in_pieces_that_fit() -> None:
    file = DataFile("/x", 2 * MIB + 5)
    assert [(p.offset, p.length) for p in pieces_of([file], "sequential")] == [(0, MIB), (MIB, MIB), (2 * MIB, 5)]
    at_random = pieces_of([file], "random")
    assert sorted(p.offset for p in at_random) == list(range(0, 2 * MIB + 5, 128 << 10))
    assert [p.offset for p in at_random] != sorted(p.offset for p in at_random)
    assert at_random == pieces_of([file], "random")


@pytest.mark.parametrize(
    ("make", "kind", "word"),
    [
        (lambda folder: folder / "nothing", "failed", "No such file"),
        (lambda folder: folder, "absent", "there is no file"),
    ],
)
def test_where_nothing_can_be_read_the_reason_stands(make: object, kind: str, word: str, tmp_path: Path) -> None:
    missing(failed(make(tmp_path)), kind, word)  # type: ignore[operator]


def test_a_file_of_several_names_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(5000))
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("a")
    assert [file.path for file in listed([str(tmp_path)]).files] == [str(tmp_path / "a")]


@pytest.mark.wide
def test_holes_and_room_set_aside_are_not_taken_for_a_disk(tmp_path: Path) -> None:
    sparse, aside = tmp_path / "sparse", tmp_path / "aside"
    with sparse.open("wb") as file:
        file.write(os.urandom(64 << 10))
        file.truncate(MIB)
    with aside.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 4 * MIB)
    if sparse.stat().st_blocks * 512 > MIB // 2:
        pytest.skip("this file system makes no holes")
    aside.read_bytes()  # lseek takes what is in the page cache for data
    for path in (sparse, aside, tmp_path):
        assert "most of a file is holes, or room set aside" in failed(path).reason
    (tmp_path / "whole").write_bytes(os.urandom(MIB))
    assert [file.path for file in listed([str(tmp_path)]).files] == [str(tmp_path / "whole")]


def test_where_no_extents_are_told_holes_are_asked_for_by_lseek(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudoctor.probes.storage.listing._FIEMAP", 0)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(MIB)
    (tmp_path / "whole").write_bytes(os.urandom(MIB))
    assert mostly_holes(str(tmp_path / "sparse"), (tmp_path / "sparse").stat())
    assert not mostly_holes(str(tmp_path / "whole"), (tmp_path / "whole").stat())


@pytest.mark.wide(every=2)
@pytest.mark.parametrize(("size", "word"), [(1, "smaller than 4 KiB"), (8192, "8 KiB of files in all: too little")])
def test_too_little_to_measure_is_no_rate(size: int, word: str, tmp_path: Path) -> None:
    (tmp_path / "tiny").write_bytes(os.urandom(size))
    for path in (tmp_path, tmp_path / "tiny"):
        assert word in failed(path).reason


def test_what_cannot_be_read_is_named_though_its_name_is_not_utf_8(tmp_path: Path) -> None:
    unreadable = tmp_path / os.fsdecode(b"donn\xe9es")
    unreadable.mkdir()
    with pytest.raises(ReadersStuckError, match=r"^reading .*/donn\?es: Is a directory$"):
        read_at_once([DataFile(str(unreadable), MIB)], [Piece(0, 0, 4096)], "sequential", 1, "dropped", 0.1, MIB)


def test_files_that_vanish_or_are_cut_short_are_no_reads_and_no_end(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(os.urandom(MIB))
    files = listed([str(tmp_path)]).files
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_bytes(b"")
    rate = read_at_once(files, pieces_of(files, "sequential"), "sequential", 1, "dropped", 9.0, 1 << 30)
    assert (rate.reads, rate.lost_reads, rate.block_bytes) == (1, 2, MIB)
    (tmp_path / "c").unlink()
    with pytest.raises(ReadersStuckError, match="not one byte"):
        read_at_once(files, pieces_of(files, "sequential"), "sequential", 1, "dropped", 9.0, 1 << 30)


@pytest.mark.parametrize(("method", "reads"), [("dropped", 1), ("direct", 3)])
def test_no_reader_gets_from_the_page_cache_what_another_has_read(method: Any, reads: int, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(os.urandom(8192))
    files = listed([str(tmp_path)]).files
    rate = read_at_once(files, pieces_of(files, "random"), "random", 3, method, seconds=0.0, most_bytes=1 << 20)
    assert (rate.reads, rate.block_bytes) == (reads, 8192)


def test_a_missing_tmpdir_is_named(tmp_path: Path) -> None:
    with pytest.raises(NothingToReadError, match=r"TMPDIR is .*/gone, which is not there"):
        made_in(str(tmp_path / "gone"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def test_a_file_of_our_own_has_no_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudoctor.probes.storage.read_child._OWN_BYTES", 64 * MIB)
    own = made_in(str(folder))
    try:
        assert own.size_bytes == 64 * MIB
        assert list(folder.iterdir()) == []
        assert Path(own.path).stat().st_nlink == 0
    finally:
        os.close(int(own.path.rpartition("/")[2]))


def test_a_disk_that_is_full_in_the_middle_is_told_and_keeps_nothing(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    descriptors = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 * MIB, hard))
    try:
        with pytest.raises(NothingToReadError, match=r"writing a file to read in .*: File too large") as told:
            made_in(str(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert told.value.tried
    assert set(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
    assert list(folder.iterdir()) == []


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A file in RAM, on another file system than temporary folders most of the time."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("/dev/shm may not be written to")
    file = Path(f"/dev/shm/gpudoctor-test-{os.getpid()}")
    try:
        file.write_bytes(bytes(MIB))
        yield file
    finally:
        file.unlink()


def test_storage_in_ram_is_not_taken_for_a_disk(elsewhere: Path) -> None:
    read = read_one(elsewhere, readers=(1,))
    assert read.cold == Missing("tmpfs is in RAM", "unsupported")
    assert may_stay_in_ram(str(elsewhere)) == read.cold
    assert "is in RAM" in failed(Path("/dev/shm"), own_file=True).reason


def test_the_page_cache_is_seen_and_dropped(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("wb") as opened:
        opened.write(os.urandom(4 * MIB))
        os.fsync(opened.fileno())
    file.read_bytes()
    share = page_cache.resident_share(str(file))
    if share != 1.0:
        pytest.skip(f"this file system or kernel does not tell the page cache: {share}")
    with file.open("rb") as held, mmap.mmap(held.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[0::4096], "its pages are in use, and stay"
        missing(may_stay_in_ram(str(file)), "failed", "100% of a file stayed in the page cache")
    assert may_stay_in_ram(str(file)) is None
    assert (page_cache.resident_share(str(file)) or 0.0) < 0.02
    assert page_cache.resident_share(str(tmp_path / "nothing")) is None


@pytest.mark.parametrize(
    ("fs_type", "method", "goes_past", "stayed", "word"),
    [
        ("ext4", "direct", True, [], None),
        ("nfs4", "direct", None, [], None),
        ("ext4", "direct", False, [], "in spite of O_DIRECT"),
        ("btrfs", "direct", None, [], "may go through the page cache"),
        ("btrfs", "direct", True, [], None),
        ("ext4 data=journal", "direct", None, [], "may go through the page cache"),
        ("zfs", "direct", True, [], "a cache of its own"),
        ("fuse.sshfs", "direct", True, [], "a process of this machine answers"),
        ("overlay", "direct", True, [], None),
        ("overlay", "direct", None, [], "may go through the page cache"),
        ("overlay", "dropped", None, [0.0], "what lies below the layers"),
        ("squashfs", "dropped", None, [0.0, 0.01], None),
        ("squashfs", "dropped", None, [0.0, 0.5], "50% of a file stayed"),
        ("squashfs", "dropped", None, [None], "another user's files"),
        ("squashfs", "dropped", None, [], "another user's files"),
    ],
)
def test_what_may_have_come_from_ram_is_never_called_cold(
    fs_type: str, method: Any, goes_past: bool | None, stayed: list[float | None], word: str | None
) -> None:
    name, *options = fs_type.split()
    found = cold(Mount("/data", name, "none", ("rw",), tuple(options), "0:99"), method, goes_past, stayed)
    if word is None:
        assert found is True
    else:
        missing(found, "failed", word)


def test_what_lies_on_a_file_system_that_is_not_known_is_never_called_cold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(MIB))
    # a chroot whose root is no mount: it may be on ZFS, whose cache no read reveals
    monkeypatch.setattr("gpudoctor.probes.storage.page_cache.read_mounts", lambda: ())
    for found in (cold(None, "direct", True, []), cold(None, "dropped", None, [0.0]), may_stay_in_ram(str(file))):
        missing(found, "failed", "mount table")


@contextmanager
def mounted(point: Path, *commands: list[str]) -> Iterator[None]:
    """What these commands mount at a path; skips if one of them fails."""
    point.mkdir()
    try:
        for command in commands:
            done = completed(command)
            if done.returncode:
                not_on_this_machine("mounts", f"{' '.join(command)}: {done.stderr.strip()}")
        yield
    finally:
        subprocess.run(["umount", "-R", str(point)], check=False, capture_output=True)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    with (tmp_path / "image").open("wb") as opened:
        opened.truncate(32 * MIB)
    return tmp_path / "image"


@pytest.mark.wide(every=2)
@needs("root", "mount", "mkfs.ext4", "losetup", "findmnt")
@pytest.mark.parametrize("options", ["loop", "loop,data=journal"])
def test_a_loop_device_is_not_taken_for_a_disk(options: str, image: Path, tmp_path: Path) -> None:
    point = tmp_path / "point"
    with mounted(point, ["mkfs.ext4", "-qF", str(image)], ["mount", "-o", options, str(image), str(point)]):
        (point / "shard.bin").write_bytes(os.urandom(4 * MIB))
        os.sync()
        read = read_one(point / "shard.bin", readers=(1,))
        past = page_cache.goes_past(str(point / "shard.bin"))
    missing(read.cold, None, "is a file")
    assert past is ("data=journal" not in options)


@needs("root", "mount", "mkfs.ext4", "losetup", "findmnt")
def test_layers_and_loop_devices_in_ram_are_not_taken_for_a_disk(tmp_path: Path) -> None:
    ram = tmp_path / "ram"
    layers = ",".join(f"{name}dir={ram}/{name}" for name in ("lower", "upper", "work"))
    with mounted(ram, ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(ram)]):
        for name in ("lower", "upper", "work"):
            (ram / name).mkdir()
        with mounted(ram / "over", ["mount", "-t", "overlay", "overlay", "-o", layers, str(ram / "over")]):
            (ram / "over" / "shard.bin").write_bytes(os.urandom(4 * MIB))
            over = read_one(ram / "over", readers=(1,))
        with (ram / "image").open("wb") as opened:
            opened.truncate(32 * MIB)
        point, image = str(ram / "loop"), str(ram / "image")
        attach = (
            f'mount "$(losetup --direct-io=on -f --show {image})" {point} && losetup -d "$(findmnt -no SOURCE {point})"'
        )
        with mounted(ram / "loop", ["mkfs.ext4", "-qF", image], ["sh", "-c", attach]):
            (ram / "loop" / "shard.bin").write_bytes(os.urandom(4 * MIB))
            os.sync()
            loop = read_one(ram / "loop", readers=(1,))
    missing(over.cold)
    missing(loop.cold, None, "is a file")
    assert loop.failure is None


def test_listing_is_bounded_and_stays_on_its_file_system(
    folder: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if elsewhere.stat().st_dev == folder.stat().st_dev:
        pytest.skip("temporary folders lie in /dev/shm")
    for number in range(9):
        (folder / f"{number}").write_bytes(bytes(5000))
    (folder / "1-other").symlink_to(elsewhere)
    monkeypatch.setattr("gpudoctor.probes.storage.listing._MOST_FILES", 5)
    found = listed([str(folder)])
    assert [Path(file.path).name for file in found.files] == ["0", "3", "5", "7"], (
        "of 10 names each second, and not the one elsewhere"
    )


def test_linked_folders_are_followed_once_and_loops_of_links_are_passed_over(folder: Path) -> None:
    (folder / "real" / "back").parent.mkdir()
    (folder / "real" / "back").symlink_to(folder)
    (folder / "real" / "image").write_bytes(b"x")
    (folder / "top").mkdir()
    for name, target in (("train", "../real"), ("loop", "loop"), ("gone", "nothing")):
        (folder / "top" / name).symlink_to(target)
    assert [Path(file.path).name for file in listed([str(folder / "top")]).files] == ["image"]


def test_sigkill_in_the_middle_leaves_no_file_and_no_process(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpudoctor", "check", "storage.read", "--progress"]
    environ = {**os.environ, "TMPDIR": str(folder), "XDG_CONFIG_HOME": str(tmp_path)}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert next((line for line in process.stderr if "write a file to read" in line), ""), "it had begun to write"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    end_s = monotonic() + 20
    while marked_processes("TMPDIR", str(folder)) and monotonic() < end_s:
        sleep(0.02)
    assert marked_processes("TMPDIR", str(folder)) == {}
    assert list(folder.iterdir()) == []
