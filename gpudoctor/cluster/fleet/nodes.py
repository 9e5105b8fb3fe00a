"""Groups reports and failed jobs by node: which report counts, names of several machines, wrong times, lost jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gpudoctor.cluster.fleet.records import NodeFault, ReportRecord, judged_of
from gpudoctor.report.model import Verdict
from gpudoctor.text.grouped import grouped
from gpudoctor.text.hostlist import hostlist, natural
from gpudoctor.text.units import counted

CLOCK_TOLERANCE_S = 60.0
STALE_S = 86400.0
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


class OpenFault(msgspec.Struct, frozen=True):
    """A fault in an older report that no newer report has checked again.

    `unsure`: the newest report may not be of a later state: a clock was wrong, or both ran at the same time, as on two
    machines of the same name of which one shows no GPU.
    """

    fault: NodeFault
    record: ReportRecord
    unsure: bool = False


class FleetNode(msgspec.Struct, frozen=True):
    """A node and its reports, newest first; the newest one counts. `host` is its own host name."""

    name: str
    host: str
    records: tuple[ReportRecord, ...]
    open_faults: tuple[OpenFault, ...] = ()
    note: str | None = None

    @property
    def newest(self) -> ReportRecord:
        return self.records[0]


def nodes_of(records: Iterable[ReportRecord], now_s: float) -> list[FleetNode]:
    """The nodes in natural order of their names. Reports of one name with different GPUs are several nodes.

    `now_s` is this machine's time: a report from the future has a wrong time.
    """
    # two reports without a host name cannot be assigned to the same node
    by_name = grouped(((record.name, "" if record.named else record.place), record) for record in records)
    nodes = []
    for (name, _), group in by_name.items():
        nodes += [FleetNode(name, name, (group[0],))] if len(group) == 1 else _apart(name, group, now_s)
    return sorted(nodes, key=lambda node: natural(node.name))


def _apart(name: str, records: list[ReportRecord], now_s: float) -> list[FleetNode]:
    """Split the reports of one name by machine: reports that share a GPU are of one machine."""
    machines: list[tuple[set[str], list[ReportRecord]]] = []
    without = []
    for record in records:
        uuids = {uuid for _, uuid in record.boards}
        if not uuids:
            without.append(record)
            continue
        same = [machine for machine in machines if machine[0] & uuids]
        merged = (uuids.union(*(m[0] for m in same)), [r for m in same for r in m[1]] + [record])
        machines = [machine for machine in machines if not machine[0] & uuids] + [merged]
    if len(machines) <= 1:
        return [_node(name, name, records, None, now_s)]
    machines[0][1].extend(without)
    note = _clash(name, [group for _, group in machines])
    return [_node(f"{name} ({min(uuids)[:12]})", name, group, note, now_s) for uuids, group in machines]


def _clash(name: str, machines: Sequence[Sequence[ReportRecord]]) -> str:
    at: dict[str, int] = {}
    for number, group in enumerate(machines):
        for bus_id in {bus_id for record in group for bus_id, _ in record.boards}:
            if at.setdefault(bus_id, number) != number:
                return f"{name}: other GPUs in the same slots: {len(machines)} machines of one name, or replaced GPUs"
    return f"{name}: reports of different GPUs ({len(machines)} sets): parts of one machine, or machines of one name"


def _node(name: str, host: str, records: list[ReportRecord], note: str | None, now_s: float) -> FleetNode:
    newest_first = sorted(records, key=lambda r: (r.started_s is not None, r.started_s or 0.0, r.place), reverse=True)
    return FleetNode(name, host, tuple(newest_first), tuple(_open_faults(newest_first, now_s)), note)


def _open_faults(newest_first: Sequence[ReportRecord], now_s: float) -> list[OpenFault]:
    if not any(record.faults for record in newest_first[1:]):
        return []
    began_s = newest_first[0].started_s
    newest_is_sure = began_s is not None and began_s <= now_s + CLOCK_TOLERANCE_S
    looked_at = set(judged_of(newest_first[0]))
    found: dict[str, OpenFault] = {}
    for record in newest_first[1:]:
        at_once = began_s is not None and record.ended_s is not None and record.ended_s > began_s
        unsure = not newest_is_sure or record.started_s is None or at_once
        for fault in record.faults:
            if unsure or fault.check not in looked_at:
                found.setdefault(fault.check, OpenFault(fault, record, unsure))
        looked_at |= judged_of(record)
    return list(found.values())


def shared_gpu_notes(nodes: Sequence[FleetNode]) -> Iterator[str]:
    """Notes on GPUs reported under two names: a renamed machine, a copied report, or a container with its own name."""
    owners: dict[str, str] = {}
    shared: dict[tuple[str, str], int] = {}
    for node in nodes:
        if node.newest.simulated or not node.newest.named:
            continue
        for _, uuid in node.newest.boards:
            first = owners.setdefault(uuid, node.host)
            if first != node.host:
                shared[first, node.host] = shared.get((first, node.host), 0) + 1
    for (first, second), count in list(shared.items())[:5]:
        yield f"{first} and {second} report {counted(count, 'GPU')} in common: renamed, or a copied report"
    if len(shared) > 5:
        yield f"{len(shared) - 5} more pairs of names report GPUs in common"


def clock_notes(nodes: Sequence[FleetNode], now_s: float) -> Iterator[str]:
    """Notes on reports whose times cannot be true, or that are older than others; `now_s` is this machine's time."""
    times_s = {node.name: node.newest.started_s for node in nodes if node.newest.started_s is not None}
    ahead = {name for name, began_s in times_s.items() if began_s > now_s + CLOCK_TOLERANCE_S}
    if ahead:
        yield f"clocks apart: {hostlist(ahead)} began later than it is here now"
    late = [node.name for node in nodes if node.name not in ahead and _ended_after_written(node.newest)]
    if late:
        yield f"clocks apart: {hostlist(late)} ended later than the file was written"
    if timeless := [node.name for node in nodes if node.newest.started_s is None]:
        yield f"no credible start time: {hostlist(timeless)}; taken as older than all others"
    newest_s = max((began_s for name, began_s in times_s.items() if name not in ahead), default=0.0)
    stale = [name for name, began_s in times_s.items() if began_s < newest_s - STALE_S]
    if stale:
        yield f"more than a day older than the newest report, or its clock is behind: {hostlist(stale)}"


def _ended_after_written(report: ReportRecord) -> bool:
    """Whether it ended, by its own clock, later than its file was written, by that of this machine."""
    if report.modified_s is None or report.ended_s is None:
        return False
    return report.ended_s > report.modified_s + CLOCK_TOLERANCE_S


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
    by_node = grouped((job.host, job) for job in recent if job.host is not None)
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
    return f"{counted(row.jobs, 'job')} of the last week died by it: {causes}"


def job_notes(jobs: Sequence[JobRecord], rows: Sequence[NodeJobs]) -> Iterator[str]:
    """Notes about how many diagnoses were read, how many of them blame no machine, and each machine that is blamed."""
    if jobs:
        rest = len(jobs) - sum(row.jobs for row in rows)
        text = f"{len(jobs)} diagnos{'is' if len(jobs) == 1 else 'es'} of failed jobs read"
        yield text + (f"; {rest} of them blame no node of the last week" if rest else "")
    yield from (f"{row.node}: {jobs_words(row)}" for row in rows)
