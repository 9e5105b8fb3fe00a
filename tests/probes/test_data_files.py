"""The data probe's files and loader in this process: what it reads, what it leaves out, what it does without."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpudoctor.facts.model.measured_hardware import DataLoading, LoaderCopies, LoaderRates, LoaderStep
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.virtualization import read_cpuset
from gpudoctor.probes.data import probe
from gpudoctor.probes.data.loader import (
    BATCH,
    PIECE_BYTES,
    DataFiles,
    Seen,
    batches,
    chosen_files,
    loader_rate,
    made_files,
    short_sockets,
    why_no_batch,
)
from gpudoctor.probes.runner.merge import merged_loading
from gpudoctor.probes.storage import listing, page_cache
from tests.narrowed import missing, present
from tests.needs import needs
from tests.probes.conftest import raising
from tests.probes.fake_gpus import GpuRank
from tests.probes.test_storage_slow import FUSE, fuse_mount


def chosen(*paths: Path) -> DataFiles:
    return present(chosen_files(map(str, paths)))


def test_regular_files_below_a_folder_and_files_by_name_are_chosen(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "deep.jpg").write_bytes(b"x" * 10)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "blob").symlink_to(tmp_path / "a" / "b" / "deep.jpg")  # as in a Hugging Face cache
    (tmp_path / os.fsdecode(b"\xff.jpg")).write_bytes(b"x")
    shard = tmp_path / "a" / "shard.tar"
    shard.write_bytes(bytes(8 << 20))
    (tmp_path / "proc").symlink_to("/proc/self")  # another file system: the kernel's
    found = chosen(tmp_path)
    assert {Path(path).name: size for path, size in found.files} == {"deep.jpg": 10, "shard.tar": 8 << 20}
    assert found.empty == 1
    assert chosen(shard).mean_sample_bytes == PIECE_BYTES


def test_where_there_is_nothing_to_read_the_reason_is_given(tmp_path: Path) -> None:
    assert reason(tmp_path).endswith("there is no file")
    (tmp_path / "empty").touch()
    assert reason(tmp_path).endswith("files there have 0 bytes")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(8 << 20)
    if (tmp_path / "sparse").stat().st_blocks == 0:
        assert "most of a file is holes" in reason(tmp_path / "sparse")
    assert "No such file" in reason(tmp_path / "gone")
    latin_1 = tmp_path / os.fsdecode(b"donn\xe9es")
    latin_1.mkdir()
    (latin_1 / "0.jpg").write_bytes(b"x")
    assert reason(latin_1).endswith("names of files there are not UTF-8")
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "proc").symlink_to("/proc")
    assert "on other file systems" in reason(tmp_path / "only")


@needs(*FUSE)
def test_a_mount_that_hangs_is_given_up_by_the_rank_that_looks(tmp_path: Path) -> None:
    (tmp_path / "sound").write_bytes(b"x" * 100)
    with fuse_mount(tmp_path / "silent", 0.0) as server:
        server.send_signal(signal.SIGSTOP)
        lost = probe.look_in_time([str(tmp_path / "silent")], limit_s=1.0)
        sound = probe.look_in_time([str(tmp_path / "sound")])
        assert server.poll() is None
    assert lost.why == Missing("what --data names did not answer within 1 s", "failed")
    assert sound.files == DataFiles(((str(tmp_path / "sound"), 100),))


@pytest.mark.parametrize("doubtful", ["local", "in_ram"])
def test_a_file_system_that_may_answer_from_ram_is_seen_beside_one_with_larger_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doubtful: str
) -> None:
    doubt, known_to_be = Missing("a cache of its own", "failed"), Missing("tmpfs is in RAM", "unsupported")
    (tmp_path / "local").mkdir()
    with TemporaryDirectory(dir="/dev/shm") as in_ram:
        folders = {"local": tmp_path / "local", "in_ram": Path(in_ram)}
        if len({folder.stat().st_dev for folder in folders.values()}) == 1:
            pytest.skip("temporary files lie in /dev/shm: there is no second file system")
        for name, folder in folders.items():
            (folder / "file").write_bytes(bytes(100 if name == doubtful else 200))
        small = str(folders[doubtful] / "file")
        monkeypatch.setattr(probe, "may_stay_in_ram", lambda file: doubt if file == small else known_to_be)
        assert probe.look_in_time([str(folder) for folder in folders.values()]).perhaps_in_ram == doubt


def reason(path: Path) -> str:
    return missing(chosen_files([str(path)])).reason


def test_many_files_are_represented_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        (tmp_path / f"{number}").write_bytes(b"x")
    monkeypatch.setattr(listing, "_MOST_FILES", 4)
    assert [Path(path).name for path, _ in chosen(tmp_path).files] == ["0", "3", "6", "9"]


def test_a_full_disk_is_said_and_leaves_the_other_probes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "write_bytes", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    why = made_files(tmp_path / "data")
    assert missing(why).reason == "files to load could not be made in TMPDIR: No space left on device"
    assert not (tmp_path / "data").exists(), "the last inodes are left to the ranks"


def test_a_tmpdir_without_a_limit_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tmpfs with size=0 reports 0 blocks, of which 0 are free."""
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_frsize=4096, f_blocks=0, f_bavail=0, f_bfree=0))
    assert present(made_files(tmp_path / "data"))
    assert why_no_batch(OSError(errno.ENOSPC, "No space left on device")) == "[Errno 28] No space left on device"


def test_made_files_come_whole_and_bytes_are_counted(tmp_path: Path) -> None:
    made = present(made_files(tmp_path / "data"))
    used: list[int] = []
    seen = Seen()
    rate = present(loader_rate(made, 0, 0, 0.0, seen, use=lambda data: used.append(data.numel())))
    assert used == [BATCH * 110_000] * 2
    assert rate.gb_s == pytest.approx(rate.samples_per_s * 110_000 / 1e9)
    assert (seen.samples, seen.unreadable) == (3 * BATCH, 0)


def test_a_piece_of_a_large_file_does_not_come_from_the_page_cache(tmp_path: Path) -> None:
    shard = tmp_path / "shard.tar"
    with shard.open("wb") as file:
        file.write(os.urandom(32 << 20))
        os.fsync(file.fileno())
    shard.read_bytes()
    if page_cache.resident_share(str(shard)) != 1.0:
        pytest.skip("this file system or kernel does not tell the page cache")
    with batches(chosen(shard), 0, 0) as given:
        next(given)
    share = present(page_cache.resident_share(str(shard)))
    assert share < 0.9, "pieces of the cache that lie half outside a sample were not dropped"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_vanishes_or_shrinks_is_a_sample_less_and_no_end(tmp_path: Path, workers: int) -> None:
    for number in range(8):
        (tmp_path / f"{number}").write_bytes(b"x" * 100)
    found = chosen(tmp_path)
    for number in range(4):
        (tmp_path / f"{number}").unlink()
    (tmp_path / "4").write_bytes(b"")
    seen = Seen()
    with short_sockets(tmp_path), batches(found, 0, workers) as given:
        batch = next(given)
        seen.take(batch)
    assert bytes(batch.data.tolist()) == b"x" * 100 * batch.samples
    assert batch.samples + batch.unreadable == seen.samples == BATCH
    assert 0 < seen.unreadable < BATCH
    assert seen.why in ("No such file or directory", "it became shorter")


def rates(gb_s: float, first_batch_s: float = 0.1, shm: int = 5) -> LoaderRates:
    return LoaderRates(gb_s * 1e4, gb_s, gb_s, first_batch_s, shm)


def test_ranks_add_up_and_the_slowest_is_kept() -> None:
    def of_rank(number: int, gb_s: float, *, failed: bool = False, **facts: Any) -> DataLoading:
        died = LoaderStep(2, None, Missing("died", "failed"))
        steps = (LoaderStep(0, rates(gb_s, gb_s)), died if failed else LoaderStep(2, rates(1.0)))
        copies = LoaderCopies(2, gb_s, 2 * gb_s)
        return DataLoading("cuda", 2, 9, 32, 1e5, steps, cpus=(number + 1,), samples=10, copies=copies, **facts)

    assert merged_loading({0: of_rank(0, 1.0)}, 2) is None, "a rank that did not report"
    merged = present(merged_loading({1: of_rank(1, 3.0, failed=True, unreadable=1), 0: of_rank(0, 1.0)}, 2))
    first, second = merged.steps
    assert first.rates == LoaderRates(4e4, 4.0, 1.0, 3.0, 5)
    assert second.not_run == Missing("died", "failed")
    assert (merged.cpus, merged.samples, merged.unreadable) == ((1, 2), 20, 1)
    assert merged.copies == LoaderCopies(2, 4.0, 8.0)


@pytest.mark.parametrize(
    ("mounts", "group", "files", "cpus"),
    [
        ("30 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "0::/job", {"job/cpuset.cpus.effective": "3-4,7\n"}, 3),
        ("30 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "0::/job", {"cpuset.cpus.effective": "0\n"}, 1),
        (
            "30 1 0:1 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset",
            "4:cpuset:/job",
            {"cpuset/job/cpuset.effective_cpus": "0-15\n"},
            16,
        ),
    ],
)
def test_the_cpus_of_the_cgroup_are_counted(
    tmp_path: Path, mounts: str, group: str, files: dict[str, str], cpus: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(mounts + "\n")
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert read_cpuset(tmp_path) == cpus


def test_the_way_to_the_gpu_is_taken_with_and_without_pinning_by_the_best_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = present(made_files(tmp_path / "data"))
    asked: list[tuple[int, bool]] = []

    def rate(files: DataFiles, rank: int, workers: int, for_s: float, seen: Seen, **options: Any) -> LoaderRates:
        asked.append((workers, options["pin"]))
        options["use"](torch.zeros(8, dtype=torch.uint8))
        return rates(3.0 if options["pin"] else 2.0)

    monkeypatch.setattr(probe, "loader_rate", rate)
    steps = [LoaderStep(0, rates(1.0)), LoaderStep(4, rates(2.0)), LoaderStep(8, None, Missing("no room", "denied"))]
    one = GpuRank(tmp_path)
    assert probe._copies(one, made, steps, 0.1, Seen()) == LoaderCopies(4, 2.0, 3.0)
    assert asked == [(4, False), (4, True)]
    assert (one.phases, one.barriers) == (["data loader with 4 workers a rank, to the GPU"], 2)


def test_a_full_disk_that_nobody_names_is_looked_for_in_shared_memory() -> None:
    assert "free in /dev/shm: " in why_no_batch(OSError(errno.ENOSPC, "No space left on device"))
    for named in (OSError(errno.ENOSPC, "No space left on device", "/data/x"), RuntimeError("worker gone (pid 7)")):
        assert "/dev/shm" not in why_no_batch(named)
