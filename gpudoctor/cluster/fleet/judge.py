"""Judges a fleet from its reports: verdicts, kinds of faults, outliers, drift, notes."""

from __future__ import annotations

import datetime
import signal
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from gpudoctor import __version__
from gpudoctor.cluster.fleet.figures import with_gpus
from gpudoctor.cluster.fleet.model import (
    OUTLIER,
    ConfigDrift,
    FaultKind,
    Fleet,
    FleetReading,
    NodeCounts,
    NodeRow,
    Outlier,
    by_node_name,
    drifts,
)
from gpudoctor.cluster.fleet.nodes import (
    JOBS,
    FleetNode,
    JobRecord,
    NodeJobs,
    clock_notes,
    job_notes,
    jobs_by_node,
    jobs_words,
    nodes_of,
    shared_gpu_notes,
)
from gpudoctor.cluster.fleet.reading import Gathered
from gpudoctor.cluster.fleet.records import NO_GPU, NodeFault, ReportRecord
from gpudoctor.cluster.fleet.runs import RunFinding, fleet_runs
from gpudoctor.cluster.fleet.shapes import WORST_FIRST
from gpudoctor.cluster.fleet.spreads import by_kind, compare, trends
from gpudoctor.report.model import Verdict
from gpudoctor.text.grouped import grouped
from gpudoctor.text.hostlist import Hosts, hostlist, is_host_name, one_name_each
from gpudoctor.text.units import counted, listed


def fleet_of(
    sources: Sequence[str],
    gathered: Gathered,
    now_s: float,
    older_sources: Sequence[str] = (),
    older: Gathered | None = None,
    expected: Sequence[str] = (),
) -> Fleet:
    """Judge the reports, and add what changed since the older set if there is one.

    `now_s` is this machine's time, to recognise reports from the future. An `expected` host without a report is
    unknown.
    """
    fleet, nodes = _judged(sources, gathered, now_s, expected)
    if older is None:
        return fleet
    before, old_nodes = _judged(older_sources, older, now_s)
    found = trends(nodes, fleet.nodes, old_nodes, before.nodes)
    return msgspec.structs.replace(fleet, against=before.reading, trends=found)


def could_not(sources: Sequence[str], message: str, code: int) -> Fleet:
    """The result of a run that failed with an error."""
    reading = FleetReading(tuple(sources), 0, 0, 0, 0)
    return Fleet("gpudoctor.fleet/1", __version__, "unknown", code, NodeCounts(0), reading, error=message)


def _names_of_one_node(
    records: Sequence[ReportRecord], failed: Sequence[JobRecord], expected: Sequence[str]
) -> dict[str, str]:
    """Names with a domain -> the name without it, if both mean one node.

    Two reports are of one node only if they share a GPU: a newer one would otherwise hide the failure of another node.
    """
    boards: dict[str, set[str]] = {}
    for record in records:
        if record.named:
            boards.setdefault(record.name, set()).update(uuid for _, uuid in record.boards)
    same = one_name_each([*boards, *(job.host for job in failed if job.host)])
    return {
        name: short
        for name, short in same.items()
        if not {name, short} <= set(expected)
        and (name not in boards or short not in boards or boards[name] & boards[short])
    }


def _judged(
    sources: Sequence[str], gathered: Gathered, now_s: float, expected: Sequence[str] = ()
) -> tuple[Fleet, list[FleetNode]]:
    records, failed = gathered.records, gathered.jobs
    if same := _names_of_one_node(records, failed, expected):
        records = [replace(r, name=same.get(r.name, r.name)) if r.named else r for r in records]
        failed = [replace(job, host=same.get(job.host or "", job.host)) for job in failed]
    nodes = nodes_of(records, now_s)
    figures, outliers, compare_notes = compare(nodes)
    by_node = by_node_name(outliers)
    jobs = jobs_by_node(failed, now_s)
    rows = tuple(_rows(nodes, by_node, jobs, expected))
    counts = _counts(rows, len(gathered.broken))
    drift = tuple(_drift(nodes))
    runs = fleet_runs(gathered.runs)
    verdict = _verdict(counts, bool(drift), gathered.interrupted is not None)
    if runs and not rows and not counts.unread and gathered.interrupted is None:  # nothing but trainings was read
        verdict = min((run.verdict for run in runs), key=WORST_FIRST.index)
    times = sorted(node.newest.started_s for node in nodes if node.newest.started_s is not None)
    simulated = sum(1 for row in rows if row.simulated)
    fleet = Fleet(
        "gpudoctor.fleet/1",
        __version__,
        verdict,
        {"fail": 1, "unknown": 3}.get(verdict, 0),
        counts,
        _reading(sources, gathered, len(nodes)),
        simulated,
        _at(times[0]) if times else None,
        _at(times[-1]) if times else None,
        rows,
        tuple(_fault_kinds(rows)),
        outliers,
        figures,
        drift,
        jobs=jobs,
        runs=runs,
        notes=(
            *_notes(nodes, rows, simulated),
            *_not_expected(nodes, expected),
            *clock_notes(nodes, now_s),
            *compare_notes,
            *job_notes(gathered.jobs, jobs),
        ),
    )
    return fleet, nodes


def _rows(
    nodes: Sequence[FleetNode],
    outliers: dict[str, list[Outlier]],
    jobs: Sequence[NodeJobs],
    expected: Sequence[str],
) -> Iterator[NodeRow]:
    """A row for each node with a report, and for each without one that is expected or blamed for failed jobs."""
    blamed = {row.node: row for row in jobs if row.status in ("warn", "fail")}
    for node in nodes:
        yield _with_jobs(_row(node, outliers.get(node.name, [])), blamed.pop(node.host, None))
    silent = NodeRow("", "", "unknown", "UNKNOWN no report of this node was read", "", "", None, "", reports=0)
    reported = Hosts((*(node.host for node in nodes), *blamed))
    all_simulated = bool(nodes) and all(node.newest.simulated for node in nodes)
    for name in (host for host in expected if host not in reported):
        yield msgspec.structs.replace(silent, name=name, host=name, simulated=all_simulated)
    for name, found in blamed.items():
        yield _with_jobs(msgspec.structs.replace(silent, name=name, host=name, place=found.places[-1]), found)


def _not_expected(nodes: Sequence[FleetNode], expected: Sequence[str]) -> Iterator[str]:
    hosts = Hosts(expected)
    if expected and (others := [node.host for node in nodes if node.host not in hosts]):
        yield f"not expected, and judged like the others: {hostlist(others)}"


def _with_jobs(row: NodeRow, jobs: NodeJobs | None) -> NodeRow:
    if jobs is None or row.simulated:
        return row
    text = jobs_words(jobs)
    if jobs.status == "fail":
        fault = NodeFault(JOBS, text)
        reason = row.reason if row.verdict == "fail" else f"FAIL {JOBS} {text}"
        return msgspec.structs.replace(row, verdict="fail", reason=reason, faults=(*row.faults, fault))
    worse = {"verdict": "warn", "reason": f"WARN {JOBS} {text}"} if row.verdict == "pass" else {}
    return msgspec.structs.replace(row, warnings=(*row.warnings, JOBS), **worse)


def _row(node: FleetNode, outliers: list[Outlier]) -> NodeRow:
    newest = node.newest
    verdict, reason = newest.verdict, newest.reason
    faults = list(newest.faults)
    if node.open_faults and verdict != "fail":
        verdict, reason = "unknown", f"UNKNOWN {_open_fault_text(node)}"
    slow = [outlier for outlier in outliers if outlier.status == "fail"]
    # if the node's own checks found a fault, the outlier is its effect and not another fault
    if slow and verdict != "fail":
        headline = outlier_words(slow[0]) + (f" (+{len(slow) - 1} more)" if len(slow) > 1 else "")
        faults.append(NodeFault(OUTLIER, headline))
        verdict, reason = "fail", f"FAIL {OUTLIER} {headline}"
    elif outliers and verdict == "pass":
        verdict, reason = "warn", f"WARN {OUTLIER} {outlier_words(outliers[0])}"
    return NodeRow(
        name=node.name,
        host=node.host,
        verdict=verdict,
        reason=reason,
        kind=newest.kind,
        level=newest.level,
        started_at=None if newest.started_s is None else _at(newest.started_s),
        place=newest.place,
        reports=len(node.records),
        simulated=newest.simulated,
        injected=newest.injected,
        faults=tuple(faults),
        unknown=newest.unknown,
        warnings=newest.warned,
    )


def _open_fault_text(node: FleetNode) -> str:
    first = node.open_faults[0]
    when = first.record.place if first.record.started_s is None else f"the report of {_at(first.record.started_s)}"
    reported = f"{first.fault.check} failed in {when}"
    if first.unsure:
        return f"{reported}, and by the clocks it is not sure that {node.newest.place} is of a later state"
    return f"{reported} and was not looked at since"


def outlier_words(outlier: Outlier) -> str:
    """One line: the figure, the GPU, the value, and the fleet's criterion.

    >>> outlier_words(Outlier("a", "fail", "train step, 8 ranks", (), 24.0, "ms", 20.0, 0.83, 9.1, "H100"))
    'train step, 8 ranks: 24 ms, fleet 20 (17 % worse)'
    """
    figure, worse = with_gpus(outlier.figure, outlier.gpus), 100 * (1 - outlier.similarity)
    return f"{figure}: {outlier.value:.4g} {outlier.unit}, fleet {outlier.criterion:.4g} ({worse:.0f} % worse)"


def run_finding_words(finding: RunFinding) -> str:
    """One line: host, rank, what was found, and its cause."""
    who = [finding.host or "", "" if finding.rank is None else f"rank {finding.rank}"]
    where = " ".join(filter(None, who))
    likely = f"; {finding.likely}" if finding.likely else ""
    return f"{where}: {finding.text}{likely}" if where else f"{finding.text}{likely}"


def _counts(rows: Sequence[NodeRow], unread: int) -> NodeCounts:
    verdicts = [row.verdict for row in rows]
    return NodeCounts(
        nodes=len(rows),
        passed=verdicts.count("pass"),
        warn=verdicts.count("warn"),
        fail=verdicts.count("fail"),
        unknown=verdicts.count("unknown"),
        unread=unread,
    )


def _verdict(counts: NodeCounts, drifting: bool, interrupted: bool) -> Verdict:
    if counts.fail:
        return "fail"
    # an unreadable report is of an unknown node, and so are those that an interrupted run did not read
    if counts.unknown or counts.unread or not counts.nodes or interrupted:
        return "unknown"
    return "warn" if counts.warn or drifting else "pass"


def _reading(sources: Sequence[str], gathered: Gathered, nodes: int) -> FleetReading:
    return FleetReading(
        sources=tuple(sources),
        files=gathered.found.files,
        others=gathered.found.others,
        reports=len(gathered.records),
        older=len(gathered.records) - nodes,
        broken=tuple(gathered.broken),
        foreign=tuple(gathered.foreign),
        duplicates=tuple(gathered.duplicates),
        interrupted=None if gathered.interrupted is None else signal.Signals(gathered.interrupted).name,
    )


def _fault_kinds(rows: Sequence[NodeRow]) -> Iterator[FaultKind]:
    """Faults, then unknowns, then warnings; the most frequent of each first."""
    found: list[tuple[Literal["fail", "unknown", "warn"], str, str]] = []
    found += [("fail", fault.check, row.name) for row in rows for fault in row.faults]
    found += [("unknown", check, row.name) for row in rows for check in row.unknown]
    found += [("warn", check, row.name) for row in rows for check in row.warnings]
    kinds = grouped(((status, check), name) for status, check, name in found)
    headlines = grouped((fault.check, fault.headline) for row in rows for fault in row.faults)
    ordered = sorted(kinds.items(), key=lambda item: (WORST_FIRST.index(item[0][0]), -len(item[1])))
    for (status, check), names in ordered:
        unique = tuple(dict.fromkeys(names))
        yield FaultKind(check, status, unique, headlines[check][0] if status == "fail" else None)


def _drift(nodes: Sequence[FleetNode]) -> Iterator[ConfigDrift]:
    for kind, group in by_kind(nodes).items():
        if NO_GPU not in kind:
            yield from drifts(kind, {node.name: node.newest.configuration for node in group})


def _notes(nodes: Sequence[FleetNode], rows: Sequence[NodeRow], simulated: int) -> Iterator[str]:
    yield from dict.fromkeys(node.note for node in nodes if node.note)
    nameless = [node for node in nodes if not node.newest.named]
    if nameless:
        yield f"{counted(len(nameless), 'report')} without a host's name: called by file"
    unfit = [row.name for row in rows if not is_host_name(row.host)]
    if unfit:
        yield f"{counted(len(unfit), 'node')} with a name that no host list may hold: {listed(unfit, 4)}"
    injected = [row.name for row in rows if row.injected]
    if injected:
        yield f"INJECTED faults (--inject) in the reports of {hostlist(injected)}: their probes were made to go wrong"
    partly = [node.name for node in nodes if node.newest.is_partly_read]
    if partly:
        yield f"measurements that cannot be read here, and are not compared: {hostlist(partly)}"
    if simulated and simulated < len(rows):
        yield f"{simulated} of {len(rows)} nodes are SIMULATED: compared among themselves, in no host list"
    for node in nodes:
        if node.open_faults and node.newest.verdict != "fail":
            yield f"{node.name}: {_open_fault_text(node)}; run that level again"
    yield from shared_gpu_notes(nodes)


def _at(seconds: float) -> str:
    """
    >>> _at(0.0)
    '1970-01-01T00:00:00Z'
    """
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return "an impossible time"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
