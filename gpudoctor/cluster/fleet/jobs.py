"""Failed jobs, grouped by the node that `gpudoctor diagnose` named as their cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from gpudoctor.cluster.fleet.shapes import Verdict

DIAGNOSIS = "gpudoctor.diagnosis/1"
JOBS = "fleet.jobs"
"""The id under which a node counts that jobs died on."""

WEEK_S = 7 * 86400.0
# one job may fail anywhere; two on one node are worth a look
_WARN_JOBS, _FAIL_JOBS = 2, 3
# causes that stay with the machine
_OF_HARDWARE = frozenset(
    (
        *("gpu_lost", "gpu_ecc", "gpu_xid", "nvlink_failed", "gpu_isolated", "cuda_system_not_ready"),
        *("cuda_driver_mismatch", "cuda_driver_too_old", "cuda_init_failed", "nvls_failed", "imex_mnnvl"),
        *("ib_completion_error", "ib_port_error", "ib_qp_setup_failed"),
        *("node_lost", "sigbus", "fs_readonly", "stale_nfs", "tpu_fault"),
    )
)
# causes in a machine or in what else ran on it, as opposed to bugs of the job's own program
_OF_A_MACHINE = _OF_HARDWARE | frozenset(
    (
        *("cuda_busy", "cuda_launch_failure", "nccl_cuda_unknown", "ib_memlock", "ofi_error", "bootstrap_no_interface"),
        *("host_oom", "host_alloc_failed", "process_died_unknown", "silent_exit", "missing_rank", "watchdog_stuck"),
        *("rank_hung", "disk_full", "shm_too_small", "shm_too_small_loader", "shm_permission"),
        *("loader_worker_killed", "limit_nofile", "killed_sigkill", "kernel_hang", "ib_device_refused"),
        *("ib_access_error", "efa_not_found", "heartbeat_lost", "accelerator_error", "checkpoint_not_written"),
    )
)


class _Cause(msgspec.Struct, frozen=True):
    what: str
    host: str | None = None
    confidence: str = "possible"


class _Diagnosis(msgspec.Struct, frozen=True):
    schema: str
    verdict: str
    cause: _Cause | None = None


class JobRecord(msgspec.Struct, frozen=True):
    """One failed job. `host` is None if no machine is blamed; `written_s` is when its diagnosis was written."""

    place: str
    what: str
    host: str | None
    written_s: float | None


class NodeJobs(msgspec.Struct, frozen=True):
    """The jobs of the last week that failed because of one node: their number, causes, and diagnosis files."""

    node: str
    jobs: int
    causes: dict[str, int]
    status: Verdict
    places: tuple[str, ...]


def job_of(data: bytes, place: str, written_s: float | None) -> JobRecord | None:
    """The job in a document of `gpudoctor diagnose --json`; None if it is no such document.

    A machine is blamed only for causes that can lie in a machine, and only if the diagnosis is certain or likely.
    """
    try:
        found = msgspec.json.decode(data, type=_Diagnosis)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if found.schema != DIAGNOSIS:
        return None
    cause = found.cause
    if found.verdict != "cause" or cause is None:
        return JobRecord(place, found.verdict, None, written_s)
    blamed = cause.what in _OF_A_MACHINE and cause.confidence in ("certain", "likely")
    return JobRecord(place, cause.what[:60], cause.host[:253] if blamed and cause.host else None, written_s)


def jobs_by_node(jobs: Sequence[JobRecord], now_s: float) -> tuple[NodeJobs, ...]:
    """The nodes because of which jobs of the last week failed, worst first.

    Two jobs are a warning. Three are a failure if their causes stay with the machine, unless half of the blamed nodes
    have as many: then the cause is the network or storage that they share. A diagnosis of unknown time counts.
    """
    recent = [job for job in jobs if job.written_s is None or job.written_s > now_s - WEEK_S]
    by_node: dict[str, list[JobRecord]] = {}
    for job in recent:
        if job.host is not None:
            by_node.setdefault(job.host, []).append(job)
    many = sum(1 for found in by_node.values() if _by_hardware(found) >= _FAIL_JOBS)
    shared = many > 1 and 2 * many >= len(by_node)
    rows = [_row(node, found, shared) for node, found in by_node.items()]
    return tuple(sorted(rows, key=lambda row: (-row.jobs, row.node)))


def _by_hardware(found: Sequence[JobRecord]) -> int:
    return sum(1 for job in found if job.what in _OF_HARDWARE)


def _row(node: str, found: Sequence[JobRecord], shared: bool) -> NodeJobs:
    status: Verdict = "pass"
    if _by_hardware(found) >= _FAIL_JOBS and not shared:
        status = "fail"
    elif len(found) >= _WARN_JOBS:
        status = "warn"
    causes = dict(Counter(job.what for job in found).most_common())
    return NodeJobs(node, len(found), causes, status, tuple(job.place for job in found))


def jobs_words(row: NodeJobs) -> str:
    """One line for people.

    >>> jobs_words(NodeJobs("a", 3, {"gpu_lost": 2, "node_lost": 1}, "fail", ()))
    '3 jobs of the last week died by it: gpu_lost (2), node_lost'
    """
    causes = ", ".join(what if count == 1 else f"{what} ({count})" for what, count in row.causes.items())
    return f"{row.jobs} job{'' if row.jobs == 1 else 's'} of the last week died by it: {causes}"


def job_notes(jobs: Sequence[JobRecord], rows: Sequence[NodeJobs]) -> Iterator[str]:
    """Notes about how many diagnoses were read, how many of them blame no machine, and each machine that is blamed."""
    if jobs:
        rest = len(jobs) - sum(row.jobs for row in rows)
        words = f"{len(jobs)} diagnos{'is' if len(jobs) == 1 else 'es'} of failed jobs read"
        yield words + (f"; {rest} of them blame no node of the last week" if rest else "")
    yield from (f"{row.node}: {jobs_words(row)}" for row in rows)
