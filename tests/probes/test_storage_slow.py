"""Sources made in the test that are slow, throttled or silent: each is named, and costs nothing but itself."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import msgspec
import pytest

import gpudoctor
from gpudoctor.api.config import Config, ConfigError, load_config
from gpudoctor.api.load.request import LoadRequest
from gpudoctor.api.load.storage import with_storage
from gpudoctor.api.node_check import CheckRequest, prepare
from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.registry import registry
from gpudoctor.facts.deadlines import Deadline
from gpudoctor.facts.model.measured_hardware import StorageRead
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node, Source
from gpudoctor.facts.model.storage import Storage, StorageMount, StoragePath
from gpudoctor.facts.system.mounts import Mount, may_hang, read_mounts
from gpudoctor.probes.runner.launch import _refuse_silent_tmpdir, _require_locks
from gpudoctor.probes.storage.measure import read_paths
from gpudoctor.process.temporary_folder import temporary_folder
from tests.checks.one_check import judge, words
from tests.needs import find, missing, needs
from tests.probes.conftest import raising
from tests.subprocesses import completed

MIB = 1 << 20
FUSE = ("mfusepy", "/dev/fuse", "fusermount3")


@contextmanager
def fuse_mount(point: Path, delay_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """The file system of fuse_server.py at this place; the test is marked @needs(*FUSE)."""
    point.mkdir()
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("fuse_server.py")), str(point), str(delay_s)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end_s = monotonic() + 20
        while str(point) not in Path("/proc/self/mountinfo").read_text() and monotonic() < end_s:
            if server.poll() is not None:
                missing("mounts", "of FUSE")
            sleep(0.01)
        yield server
    finally:
        server.send_signal(signal.SIGCONT)
        subprocess.run([str(find("fusermount3")), "-u", "-z", str(point)], check=False, capture_output=True)
        server.kill()
        server.wait()


@contextmanager
def silent_mount(point: Path) -> Iterator[None]:
    """One that answers nothing; what waits for it fails the test instead of hanging it."""
    with fuse_mount(point, 0.0) as server:
        server.send_signal(signal.SIGSTOP)
        server_ends = threading.Timer(10, server.kill)
        server_ends.start()
        yield
        assert server.poll() is None, "it waited until the server was ended"
        server_ends.cancel()


@needs(*FUSE)
def test_a_slow_file_system_is_named(tmp_path: Path) -> None:
    with fuse_mount(tmp_path / "slow", 0.02):
        [read] = read_paths([StorageRead(str(tmp_path / "slow"))], (1,), seconds=0.2)
    assert read.failure is None
    result = judge("storage.read", Node(), Measurements(storage=(read,)))
    assert result.status is Status.WARN
    assert "whose reads are random waits for data" in words(result)


@pytest.mark.wide
@needs(*FUSE)
def test_a_mount_that_hangs_costs_its_own_findings_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudoctor.facts.system.path_status.PATH", Deadline(2.0, "for this test"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    silent, sound = tmp_path / "silent", tmp_path / "sound"
    sound.mkdir()
    (sound / "shard.bin").write_bytes(os.urandom(2 * MIB))
    with fuse_mount(silent, 0.0) as server:
        server.send_signal(signal.SIGSTOP)
        report = gpudoctor.check(only=["storage.mount"], level="quick", data=[silent, sound], include_facts=True)
        broken, whole = read_paths([StorageRead(str(p)) for p in (silent, sound)], (1,), silence_s=2.0, seconds=0.05)
    [check] = report.checks
    assert {f.subject.name: f.status for f in check.findings if f.subject.name == str(silent)} == {
        str(silent): Status.UNKNOWN
    }
    assert [f.status for f in check.findings if f.status is not Status.UNKNOWN], "the other mounts were judged"
    assert (report.verdict, report.exit_code) == ("unknown", 3)
    assert isinstance(broken.failure, Missing)
    assert "did not come back" in broken.failure.reason
    assert whole.failure is None
    assert whole.rates
    assert not [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if _holds(entry, str(silent).encode().hex())]


def _holds(cmdline: Path, word: str) -> bool:
    try:
        return word in cmdline.read_text(errors="replace")
    except OSError:  # it ended meanwhile
        return False


@pytest.mark.wide
@needs(*FUSE)
def test_a_home_that_hangs_costs_the_users_configuration_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudoctor.facts.system.path_status.PATH", Deadline(1.0, "for this test"))
    said: list[str] = []
    with silent_mount(tmp_path / "home"):
        environ = {"HOME": str(tmp_path / "home")}
        config = load_config(None, environ, registry, silent=said.append)
        with pytest.raises(ConfigError, match=r"did not answer within 1 s; XDG_CONFIG_HOME=/ leaves it out"):
            load_config(None, environ, registry)
        monkeypatch.setenv("HOME", environ["HOME"])
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        for few in (CheckRequest(only=("pcie",)), CheckRequest(skip=("storage",)), CheckRequest(node="hgx-h100-8")):
            with pytest.raises(ConfigError, match="XDG_CONFIG_HOME=/ leaves it out"):
                prepare(few)
    assert config == Config()
    assert said == [f"the configuration {tmp_path}/home/.config/gpudoctor/config.yaml was not read: "
                    "it did not answer within 1 s"]  # fmt: skip


@needs(*FUSE)
def test_a_tmpdir_that_hangs_keeps_no_run_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudoctor.facts.system.path_status.PATH", Deadline(1.0, "for this test"))
    silent = str(tmp_path / "silent")
    why = Missing("did not answer within 1 s", "failed")
    node = Node(source=Source("live", "here"), storage=Storage((StorageMount(
        silent, "fuse", "fuse", paths=(StoragePath(silent, ("TMPDIR",)),), error=why),)))  # fmt: skip
    with silent_mount(tmp_path / "silent"):
        monkeypatch.setenv("TMPDIR", silent)
        with pytest.raises(OSError, match=f"TMPDIR, {silent}, did not answer within 1 s"):
            _refuse_silent_tmpdir()
        chosen = tuple(check for check in registry() if check.id == "storage.read")
        measured = with_storage(node, Measurements(), chosen, "full", LoadRequest(), None, {"TMPDIR": silent})
    assert measured.storage == (
        StorageRead(silent, own_file=True, failure=Missing(f"{why.reason} (see storage.mount)", "failed")),
    )


@pytest.mark.parametrize(
    ("device", "fs_type", "hangs"),
    [
        ("259:1", "ext4", False), ("259:2", "ext4", True),
        ("0:40", "btrfs", True), ("0:42", "zfs", True), ("0:41", "overlay", False), ("0:5", "proc", False),
        ("0:50", "nfs4", True), ("0:51", "fuse.s3fs", True), ("0:52", "autofs", True), ("0:53", "gpfs", True),
        ("8:1", "fuseblk", True),
    ],
)  # fmt: skip
def test_a_mount_of_a_server_a_process_or_another_disk_may_hang(device: str, fs_type: str, *, hangs: bool) -> None:
    disk = Mount("/", "ext4", "x", ("rw",), ("rw",), "259:1")
    assert may_hang("/x/y", [disk, Mount("/x", fs_type, "x", ("rw",), ("rw",), device)]) is hangs


@pytest.mark.parametrize(
    ("path", "hangs"),
    [
        ("here/file", False), ("silent", True), ("silent/file", True), ("silent2", False), ("here/../silent/x", True),
        ("link", True), ("link/../here", True), ("relative/file", True), ("chain", True), ("loop/file", False),
        ("nothing/file", False), ("here\0/file", False),
    ],
)  # fmt: skip
def test_only_a_path_that_leads_through_such_a_mount_may_hang(tmp_path: Path, path: str, *, hangs: bool) -> None:
    """Every node with systemd has an automounter somewhere; what does not lead there needs no child process."""
    for folder in ("here", "silent", "silent2"):
        (tmp_path / folder).mkdir()
    for name, target in (
        ("link", tmp_path / "silent"),
        ("relative", "here/../silent"),
        ("chain", "link"),
        ("loop",) * 2,
    ):
        (tmp_path / name).symlink_to(target)
    own = Mount("/", "ext4", "x", ("rw",), ("rw",), "259:1")
    over = Mount(str(tmp_path / "here"), "tmpfs", "x", ("rw",), ("rw",), "0:44")
    silent = [Mount(str(tmp_path / name), "nfs4", "x", ("rw",), ("rw",), "0:50") for name in ("here", "silent")]
    assert may_hang(f"{tmp_path}/{path}", [own, *silent, over]) is hangs


@pytest.mark.parametrize("fs_type", ["btrfs", "bcachefs", "zfs"])
def test_the_pool_of_the_root_answers_and_another_one_may_be_suspended(fs_type: str) -> None:
    mounts = [Mount(point, fs_type, "x", ("rw",), ("rw",), device) for point, device in (("/", "0:30"), ("/x", "0:31"))]
    assert not may_hang("/etc", mounts)
    assert may_hang("/x/y", mounts)


def test_a_path_hangs_with_the_root_or_without_a_mount_table() -> None:
    assert may_hang("/etc", [Mount("/", "nfs4", "x", ("rw",), ("rw",), "0:50")])
    assert may_hang("/etc", Missing("unread", "failed"))


def test_a_disk_of_the_root_that_has_no_block_devices_number_does_not_hang() -> None:
    root, home = (Mount(point, "btrfs", "/dev/sda2", ("rw",), ("rw",), "0:26") for point in ("/", "/home"))
    assert not may_hang("/home/x", [root, home])
    assert may_hang("/data/x", [root, home, Mount("/data", "btrfs", "/dev/sdb", ("rw",), ("rw",), "0:40")])


def test_a_link_to_another_containers_root_may_hang() -> None:
    """A container that sees the host's processes reaches its mounts by /proc/1/root; its own table has none of them."""
    own = [Mount("/", "overlay", "x", ("rw",), ("rw",), "0:60"), Mount("/proc", "proc", "x", ("rw",), ("rw",), "0:5")]
    assert may_hang("/proc/self/root/mnt/dead", own)
    assert not may_hang("/proc/version", own)


def test_a_name_of_bytes_that_are_no_text_may_hang(tmp_path: Path) -> None:
    """The mount table has U+FFFD instead of them."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_bytes(
        b"22 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n40 22 0:50 / /m\xff rw - nfs4 server:/x rw\n"
    )
    mounts = read_mounts(tmp_path)
    assert may_hang(os.fsdecode(b"/m\xff/data"), mounts)
    assert not may_hang("/n\u00e9/data", mounts)


@pytest.mark.wide
@needs(*FUSE)
def test_a_mount_that_falls_silent_while_it_is_read_keeps_what_was_measured(tmp_path: Path) -> None:
    with fuse_mount(tmp_path / "later", 0.0) as server:

        def stop(text: str) -> None:
            if "random" in text:
                server.send_signal(signal.SIGSTOP)

        [read] = read_paths([StorageRead(str(tmp_path / "later"))], (1,), stop, silence_s=2.0, seconds=0.1)
    assert [rate.pattern for rate in read.rates] == ["sequential"]
    result = judge("storage.read", Node(), Measurements(storage=(read,)))
    assert result.status is Status.UNKNOWN
    assert "did not come back from 'random, 1 reader'" in words(result)


@contextmanager
def throttled(folder: Path, bytes_per_s: int) -> Iterator[Path]:
    """A cgroup (version 1) in which reads of the folder's disk are throttled; skips if it cannot be made."""
    device = folder.stat().st_dev
    group = Path("/sys/fs/cgroup/blkio") / f"gpudoctor-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        missing("control groups", error.strerror)
    try:
        try:
            rule = f"{os.major(device)}:{os.minor(device)} {bytes_per_s}"
            (group / "blkio.throttle.read_bps_device").write_text(rule)
        except OSError as error:
            missing("control groups", f"this disk cannot be throttled: {error.strerror}")
        yield group
    finally:
        group.rmdir()


def in_group(group: Path, *argv: str) -> str:
    """What a program prints that runs in the cgroup."""
    shell = ("sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(group))
    return completed([*shell, *argv], check=True).stdout


def read_in_group(group: Path, file: Path, seconds: float) -> StorageRead:
    """What gpudoctor reads of the file there, by one reader; skips if the file system has no O_DIRECT."""
    code = (
        "import sys, msgspec; from gpudoctor.probes.storage.measure import *; "
        f"print(msgspec.json.encode(read_paths([StorageRead(sys.argv[1])], (1,), seconds={seconds})).decode())"
    )
    told = in_group(group, sys.executable, "-c", code, str(file))
    [read] = msgspec.json.decode(told, type=tuple[StorageRead, ...])
    if read.method != "direct":
        pytest.skip("no O_DIRECT on this file system")
    return read


def on_disk(file: Path, mib: int) -> Path:
    with file.open("wb") as opened:
        opened.write(os.urandom(mib * MIB))
        os.fsync(opened.fileno())
    return file


@pytest.mark.wide
def test_a_disk_that_a_cgroup_throttles_is_read_as_slow_as_it_is(tmp_path: Path) -> None:
    file = on_disk(tmp_path / "shard.bin", 32)
    file.read_bytes()  # in the page cache, which must not answer
    with throttled(tmp_path, 6_000_000) as group:
        read = read_in_group(group, file, 0.5)
    assert all(rate.gb_s < 0.02 for rate in read.rates), read.rates
    result = judge("storage.read", Node(), Measurements(storage=(read,), data_need_gb_s=0.1))
    assert result.status is Status.FAIL


@pytest.mark.wide
@needs("fio")
def test_rates_are_those_of_fio_on_the_same_file_within_15_percent(tmp_path: Path) -> None:
    """At a rate that a cgroup holds: how fast a shared disk is changes from one second to the next."""
    file = on_disk(tmp_path / "shard.bin", 128)
    tried: list[tuple[dict[str, float], dict[str, float]]] = []
    with throttled(tmp_path, 60_000_000) as group:
        # a disk that others keep busy gives less than the cgroup would let through: again then
        while not tried or (len(tried) < 3 and not _alike(*tried[-1])):
            # 2 s: a cgroup lets the first reads after a pause through faster than its rate
            ours = {str(rate.pattern): rate.gb_s for rate in read_in_group(group, file, 2.0).rates}
            tried.append((ours, {"sequential": of_fio(group, file, "read", "1M"),
                                 "random": of_fio(group, file, "randread", "128k")}))  # fmt: skip
    assert _alike(*tried[-1]), tried


def _alike(ours: dict[str, float], theirs: dict[str, float]) -> bool:
    return all(ours[pattern] == pytest.approx(theirs[pattern], rel=0.15) for pattern in theirs)


def of_fio(group: Path, file: Path, rw: str, block: str) -> float:
    """The rate that fio reports, in GB/s."""
    told = in_group(
        group, "fio", "--name=r", f"--filename={file}", "--readonly", "--direct=1", "--ioengine=psync",
        f"--rw={rw}", f"--bs={block}", "--runtime=2", "--time_based", "--output-format=json",
    )  # fmt: skip
    return float(json.loads(told)["jobs"][0]["read"]["bw_bytes"]) / 1e9


def test_a_tmpdir_without_file_locks_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", raising(OSError(errno.ENOLCK, "No locks available")))
    why = r"has no file locks \(No locks available\): set it to a folder on a local disk"
    with pytest.raises(OSError, match=why), temporary_folder("gpudoctor-test-") as folder:
        _require_locks(folder)
    assert not folder.exists()
