"""What `gpudoctor watch` reads beside the driver: the host, the processes and their jobs, the kernel log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from gpudoctor.facts.kernel_log.live import KernelTail
from gpudoctor.facts.model.missing import UNSUPPORTED
from gpudoctor.facts.model.node import Host, NumaNode
from gpudoctor.facts.stream.host_readers import HostReader, ProcessReader, job_of
from gpudoctor.facts.stream.messages import OnGpu
from gpudoctor.facts.system.host import read_host
from tests.narrowed import present
from tests.sysfs_tree import numa_node, write

# jobs


@pytest.mark.parametrize(
    ("environ", "group", "commands", "job"),
    [
        ({"RANK": "3", "TORCHELASTIC_RUN_ID": "none"}, "", ["python train.py"], ("torchrun", 3)),
        (
            None,
            "",
            ["python -u train.py", "/usr/bin/python /opt/bin/torchrun --nproc 8 train.py"],
            ("torchrun", None),
        ),
        (None, "", ["python train.py", "python -m torch.distributed.run train.py"], ("torchrun", None)),
        ({"RANK": "1"}, "", ["python train.py", "bash"], (None, 1)),
        (
            {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "5"},
            "",
            ["python", "slurmstepd: [4711.0]"],
            ("Slurm 4711", 5),
        ),
        (None, "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", ["python"], ("Slurm 4711", None)),
        ({}, "3:devices:/slurm/uid_1000/job_42/step_batch", ["python"], ("Slurm 42", None)),
        (
            {"SLURM_JOB_ID": "42", "SLURM_PROCID": "0", "RANK": "7", "TORCHELASTIC_RUN_ID": "42"},
            "",
            ["python train.py"],
            ("torchrun, Slurm 42", 7),
        ),
        ({"OMPI_COMM_WORLD_RANK": "2"}, "", ["./train"], ("mpirun", 2)),
        (None, "", ["./train", "/usr/bin/mpirun -np 8 ./train"], ("mpirun", None)),
        ({"RAY_JOB_ID": "01000000"}, "", ["ray::TorchTrainer"], ("Ray", None)),
        (None, "", ["ray::_RayTrainWorker__execute"], ("Ray", None)),
        # what only looks like one
        ({"SLURM_JOB_ID": "x; rm"}, "/job_list/", ["vim torchrun.py", "bash"], (None, None)),
        ({"RANK": "-1"}, "", ["python", "grep mpirun-notes"], (None, None)),
        (None, "", [], (None, None)),
    ],
)
def test_the_job_is_told_by_its_traces(
    environ: dict[str, str] | None, group: str, commands: list[str], job: tuple[str | None, int | None]
) -> None:
    assert job_of(environ, group, commands) == job


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """A process that torchrun could have started, with a hostile argument."""
    program = "import sys; sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", program, "\x1b[31mred" + "x" * 400],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "RANK": "3", "TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "4711"},
    )
    present(child.stdout).read(1)
    yield child
    present(child.stdin).close()
    present(child.stdout).close()
    child.wait()


def test_a_process_on_a_gpu_is_joined_with_what_the_system_tells_of_it(rank: subprocess.Popen[bytes]) -> None:
    import getpass

    reader = ProcessReader()
    on_gpus = (OnGpu(2, rank.pid, "C", 1024), OnGpu(3, rank.pid, "C+G"))
    for _ in range(2):
        one, other = reader.read(on_gpus)
    assert (one.gpu, one.pid, one.kind, one.memory_mib) == (2, rank.pid, "C", 1024)
    assert (other.gpu, other.kind, other.memory_mib) == (3, "C+G", None)
    assert (one.job, one.rank) == ("torchrun, Slurm 4711", 3)
    assert one.user == getpass.getuser()
    assert present(one.name).startswith("python")
    assert one.cpu_pct is not None
    assert present(one.command).isprintable()
    assert len(present(one.command)) == 200


def test_a_process_that_is_not_seen_here_is_a_pid_and_no_more(rank: subprocess.Popen[bytes]) -> None:
    reader = ProcessReader()
    gone = 2**22 + 1  # no pid is so large
    [one] = reader.read([OnGpu(0, gone, "C", 7)])
    assert (one.pid, one.memory_mib) == (gone, 7)
    assert (one.name, one.user, one.cpu_pct, one.command, one.job, one.rank) == (None,) * 6
    [before] = reader.read([OnGpu(0, rank.pid, "C")])
    present(rank.stdin).close()
    rank.wait()
    [after] = reader.read([OnGpu(0, rank.pid, "C")])
    assert before.name is not None
    assert after.name is None


def test_what_may_not_be_read_of_a_process_is_none(
    rank: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(process: psutil.Process, *_: object) -> None:
        raise psutil.AccessDenied(process.pid)

    for name in ("environ", "cmdline", "parents", "cpu_percent"):
        monkeypatch.setattr(psutil.Process, name, denied)
    [one] = ProcessReader().read([OnGpu(0, rank.pid, "C")])
    assert one.name is not None
    assert one.user is not None
    assert (one.command, one.cpu_pct, one.job, one.rank) == (None,) * 4


# the host


def test_the_host_is_told_as_its_facts_have_it() -> None:
    facts = read_host(Path("/"))
    tick = HostReader(facts).read()
    assert tick.cpus == facts.cpus_total
    assert 0 <= present(tick.cpu_pct) <= 100
    assert 0 < present(tick.ram_used_mib) <= present(tick.ram_total_mib)
    assert tick.load_1min is not None


@pytest.mark.parametrize("files", [{"memory.current": 3 << 30}, {"memory.usage_in_bytes": 3 << 30}])
def test_memory_is_counted_as_the_limit_on_this_process_counts_it(tmp_path: Path, files: dict[str, int]) -> None:
    group = "/sys/fs/cgroup/job"
    total = "total_" if "memory.usage_in_bytes" in files else ""
    write(tmp_path, {f"{group}/memory.stat": f"anon 5\n{total}inactive_file {1 << 30}"})
    write(tmp_path, {f"{group}/{name}": str(number) for name, number in files.items()})
    host = Host(memory_limit_mib=64, memory_limit_source="/sys/fs/cgroup/job/memory.max")
    tick = HostReader(host, tmp_path).read()
    assert (tick.ram_total_mib, tick.ram_used_mib) == (64, 2048)
    for name in files:
        (tmp_path / group[1:] / name).unlink()
    assert HostReader(host, tmp_path).read().ram_used_mib is None


def test_the_gpus_own_memory_is_no_ram(tmp_path: Path) -> None:
    plain = HostReader(Host()).read()
    numa_node(tmp_path, 1, "", 4096, free_mib=1024)
    nodes = (NumaNode(0, 1000), NumaNode(1, 4096, is_gpu_memory=True))
    tick = HostReader(Host(ram_mib=int(present(plain.ram_total_mib)) - 4096, numa_nodes=nodes), tmp_path).read()
    assert tick.ram_total_mib == present(plain.ram_total_mib) - 4096
    # 4096 MiB less in all, 1024 of them free: 3072 of what was used were the GPU's
    assert present(tick.ram_used_mib) == pytest.approx(present(plain.ram_used_mib) - 3072, abs=512)


def test_what_the_facts_do_not_hold_of_the_host_is_none() -> None:
    assert HostReader(Host(cpus_total=UNSUPPORTED)).read().cpus is None


# the kernel log

XID = (
    "4,2042,815162342,-;NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
)


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """/dev/kmsg of an empty log."""
    return write(tmp_path, {"/dev/kmsg": b""}) / "dev/kmsg"


def test_only_new_kernel_lines_are_told_and_each_once(tmp_path: Path, device: Path) -> None:
    device.write_text(XID.replace("79", "48"))
    tail = KernelTail(tmp_path)
    assert tail.read() == ()
    with device.open("a") as log:
        log.write("6,2043,815162343,-;usb 1-1: new device\n" + XID)
    [event] = tail.read()
    assert (event.kind, event.code, event.bus_id) == ("xid", 79, "0000:05:00.0")
    assert event.time_s == pytest.approx(815.162342)
    assert tail.read() == ()
    tail.close()
    tail.close()
    assert tail.read() == ()


def test_a_flood_of_kernel_lines_is_bounded(tmp_path: Path, device: Path) -> None:
    tail = KernelTail(tmp_path)
    device.write_text("".join(XID.replace("79", str(number)) for number in range(1, 3000)))
    assert 0 < len(tail.read()) <= 200
    tail.close()


def test_without_a_kernel_log_there_is_none(tmp_path: Path) -> None:
    assert KernelTail(tmp_path).read() == ()
    os.mkfifo(tmp_path / "kmsg")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").symlink_to(tmp_path / "kmsg")
    assert KernelTail(tmp_path).read() == ()  # a container engine put something else there


@pytest.mark.usefixtures("device")
def test_records_that_the_kernel_overwrote_are_passed_over_and_a_broken_log_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = KernelTail(tmp_path)
    answers = [BrokenPipeError(), XID.encode(), BlockingIOError(), XID.encode(), OSError(5, "I/O error")]
    monkeypatch.setattr(os, "read", Mock(side_effect=answers))
    assert [(event.kind, event.code) for event in tail.read()] == [("gap", None), ("xid", 79)]
    assert [event.code for event in tail.read()] == [79], "what came before the error counts"
    assert tail.read() == ()
