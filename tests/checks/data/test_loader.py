"""data.loader on figures made by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.measured_hardware import DataLoading, LoaderCopies, LoaderRates, LoaderStep
from gpudoctor.facts.model.measurements import ProbeProblem
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Environment, Host, Node, Variable
from tests.checks.measured import measured
from tests.checks.one_check import expect, gpus, judge
from tests.narrowed import present

HOST = Host(cpus_total=64, cpus_usable=64, cpus_usable_list="0-63", cpu_quota=None)
NODE = Node(gpus=gpus(2), host=HOST)
NO_SHM = Missing("its batches hold 26.9 MiB of /dev/shm, of which 4 MiB are free", "denied")


def step(workers: int, gb_s: float | None, slowest: float | None = None, why: Missing | None = None) -> LoaderStep:
    if gb_s is None:
        return LoaderStep(workers, None, why, 27 << 20)
    return LoaderStep(workers, LoaderRates(gb_s * 1e4, gb_s, slowest or gb_s / 2, 0.3, 9 << 20))


STEPS = (step(0, 0.4), step(2, 0.79), step(4, 1.0), step(8, 1.02))


def loading(*steps: LoaderStep, **facts: Any) -> DataLoading:
    healthy: dict[str, Any] = {
        "paths": ("/data",),
        "copies": LoaderCopies(4, 0.9, 1.0),
        "cpus": (32, 32),
        "cpus_total": 64,
        "cpuset_cpus": 64,
        "shm_bytes": 64 << 30,
        "shm_free_bytes": 64 << 30,
        "samples": 5000,
    }
    return DataLoading("cuda", 2, 1000, 32, 110e3, steps or STEPS, **{**healthy, **facts})


def judged(found: DataLoading | None = None, need: float | None = None, node: Node = NODE, **facts: Any) -> CheckResult:
    found = found or loading()
    return judge("data.loader", node, measured(node, data_loading=found, data_need_gb_s=need, **facts))


def texts(result: CheckResult) -> str:
    return "\n".join(finding.found.text for finding in result.findings if finding.found is not None)


@pytest.mark.parametrize(
    ("kind", "need", "status"),
    [
        ("failed", 0.4, Status.UNKNOWN),
        ("failed", None, Status.PASS),
        ("failed", 5.0, Status.FAIL),
        ("unsupported", 0.4, Status.PASS),
    ],
)
def test_what_may_have_come_from_ram_feeds_no_gpu(kind: Any, need: float | None, status: Status) -> None:
    in_ram = Missing("fuse: a process of this machine answers", kind)
    result = judged(loading(perhaps_in_ram=in_ram), need)
    assert result.status is status
    words = result.findings[0].found.text if result.findings[0].found else result.findings[0].reason or ""
    assert words.endswith(f"{'perhaps ' if kind == 'failed' else ''}from RAM: {in_ram.reason}"), "nothing else tells it"


def test_without_a_need_the_fewest_workers_are_told_beyond_which_more_bring_little() -> None:
    result = judged()
    assert result.status is Status.PASS
    assert "10000 samples/s (1 GB/s) read, not decoded, by 2 GPUs with num_workers=4" in texts(result)
    assert "with pin_memory 1 GB/s, without 0.9 GB/s" in texts(result)


@pytest.mark.parametrize(
    ("need", "status", "words"),
    [
        (0.15, Status.PASS, "num_workers=0"),  # each of two GPUs gets half of what all get
        (0.35, Status.PASS, "num_workers=2"),
        (0.50, Status.PASS, "num_workers=4"),
        (0.51, Status.PASS, "num_workers=8"),
        (0.52, Status.WARN, "0.51 GB/s for the slowest GPU, at best, with num_workers=8"),
        (1.01, Status.WARN, "at best"),
        (1.03, Status.FAIL, "at best"),
    ],
)
def test_the_slowest_rank_is_judged_against_what_a_gpu_must_be_fed(need: float, status: Status, words: str) -> None:
    result = judged(need=need)
    assert result.status is status
    assert words in texts(result)


def test_one_rank_that_starves_is_not_outweighed_by_the_others() -> None:
    assert judged(loading(step(0, 2.0, slowest=0.1)), need=0.4).status is Status.FAIL


@pytest.mark.parametrize(
    ("cpuset", "cause"), [(64, "taskset, numactl or the launcher"), (1, "the cpuset of the container's")]
)
def test_workers_on_one_cpu_are_a_warning_that_says_what_bound_them(cpuset: int, cause: str) -> None:
    result = judged(loading(cpus=(32, 1), cpuset_cpus=cpuset))
    [warned] = [finding for finding in result.findings if finding.status is Status.WARN]
    assert present(warned.found).text == "all workers of a rank share 1 of the 64 CPUs"
    assert cause in (warned.likely or "")


def test_a_machine_of_one_cpu_is_not_blamed_for_it() -> None:
    assert judged(loading(cpus=(1, 1), cpuset_cpus=1, cpus_total=1)).status is Status.PASS


def test_a_cpu_quota_below_two_is_a_warning() -> None:
    node = Node(gpus=gpus(2), host=msgspec.structs.replace(HOST, cpu_quota=1.0))
    assert "share 1 CPUs of time" in texts(judged(node=node))


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("OMP_PROC_BIND", "true", Status.WARN),
        ("OMP_PROC_BIND", "CLOSE,spread", Status.WARN),
        ("OMP_PROC_BIND", "false", Status.PASS),
        ("GOMP_CPU_AFFINITY", "0-3", Status.WARN),
        ("OMP_NUM_THREADS", "1", Status.PASS),
    ],
)
def test_settings_by_which_openmp_binds_workers_are_named(name: str, value: str, status: Status) -> None:
    node = Node(gpus=gpus(2), host=HOST, environment=Environment(variables=(Variable(name, value),)))
    result = judged(node=node)
    assert result.status is status
    assert (f"{name}={value} binds" in texts(result)) == (status is Status.WARN)


def test_a_dev_shm_too_small_for_workers_is_named_once() -> None:
    found = loading(step(0, 0.4), step(2, None, why=NO_SHM), step(4, None, why=NO_SHM), shm_bytes=4 << 20)
    result = judged(found)
    [warned] = [finding for finding in result.findings if finding.status is Status.WARN]
    assert present(warned.found).text.startswith("num_workers=2 was not tried: its batches hold 26.9 MiB of /dev/shm")


def test_a_step_that_failed_is_no_pass() -> None:
    died = Missing("DataLoader worker is killed by signal: Bus error.", "failed")
    assert judged(loading(step(0, 0.4), step(2, None, why=died))).status is Status.UNKNOWN


def test_a_rank_that_hung_while_it_loaded_convicts_no_gpu() -> None:
    hung = ProbeProblem("data", "timeout", "rank 1 hung in data loader with 2 workers", rank=1)
    result = judge("data.loader", NODE, measured(NODE, problems=(hung,)))
    assert result.status is Status.UNKNOWN
    assert len(result.findings) == 1


@pytest.mark.parametrize(("length", "status"), [(107, Status.PASS), (108, Status.WARN)])
def test_a_tmpdir_too_long_for_the_sockets_of_workers_is_named(length: int, status: Status) -> None:
    result = judged(loading(socket_name_bytes=length))
    assert result.status is status
    assert ("TMPDIR" in texts(result)) == (status is Status.WARN)


def test_samples_that_could_not_be_read_are_a_warning() -> None:
    result = judged(loading(unreadable=3, unreadable_why="No such file or directory"))
    assert result.status is Status.WARN
    assert "3 of 5000 samples could not be read" in texts(result)


def test_cpu_ranks_are_called_so_and_have_no_pinned_memory_to_judge() -> None:
    why = Missing("CPU ranks have no GPU to copy to")
    found = msgspec.structs.replace(loading(copies=None, no_copies=why), device="cpu")
    result = judged(found, need=9.0, node=Node(host=HOST))
    assert result.status is Status.FAIL
    assert "for the slowest CPU rank" in texts(result)
    assert "GPU to copy to" in str(result.findings)
    expect(judged(loading(copies=None, no_copies=Missing("CUDA error: out of memory", "failed"))), Status.UNKNOWN)
