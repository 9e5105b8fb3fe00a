"""Compares the ranks of a training over its nodes, by the report that `gpudoctor run -o DIR/%h.json` wrote on each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from gpudoctor.checks.core.finding import PROBLEMS, worst_verdict
from gpudoctor.cluster.fleet.records import BrokenError, refuse_other_version, seconds_of
from gpudoctor.cluster.fleet.shapes import SchemaOf
from gpudoctor.report.model import Verdict
from gpudoctor.run.observer.layout import FORWARD, PHASES
from gpudoctor.run.report import SCHEMA, FlatFinding, PhaseMs, RankReport, RunReport, judged
from gpudoctor.run.step_series import TimedStep
from gpudoctor.run.watched import Watched, WatchedRank

# what a launcher is told differently on each node
_OF_A_NODE = re.compile(r"--(node|machine)[-_]rank(=.*)?|--local[-_]addr(=.*)?")
# findings that compare ranks, and so are made again over all nodes
_COMPARED = ("run.balance", "run.batch", "run.data", "run.host")
_decoder = msgspec.json.Decoder(RunReport)


class RunFinding(msgspec.Struct, frozen=True):
    """A problem of a training: on which host and rank, null if on all; `likely` is its cause."""

    id: str
    status: Verdict
    host: str | None
    rank: int | None
    text: str
    likely: str | None


class FleetRun(msgspec.Struct, frozen=True):
    """One training, on all nodes whose reports were read. `ranks` of `world_size`; `step_ms`: the mean of its ranks."""

    command: tuple[str, ...]
    hosts: tuple[str, ...]
    ranks: int
    world_size: int | None
    step_ms: float | None
    verdict: Verdict
    findings: tuple[RunFinding, ...]


def run_report_of(data: bytes) -> RunReport | None:
    """The report in a document of `gpudoctor run`; None if it is no such document.

    Raise BrokenError if it should be one and cannot be used: the training of some node is not known.
    """
    try:
        schema = msgspec.json.decode(data, type=SchemaOf).schema
        refuse_other_version(schema, SCHEMA)
        if schema != SCHEMA:
            return None
        found = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if SCHEMA.encode() not in data:
            return None
        raise BrokenError(f"damaged: {error}") from None
    if found.verdict != (by_findings := worst_verdict(finding.status for finding in found.findings)):
        raise BrokenError(f"damaged: its verdict is {found.verdict}, and its findings say {by_findings}")
    if len(_rank_numbers(found)) < len(found.ranks):
        raise BrokenError("damaged: a rank is in it twice")
    return found


def fleet_runs(reports: Sequence[RunReport]) -> tuple[FleetRun, ...]:
    """The trainings, in the order in which they started."""
    return tuple(_run(group) for group in _groups(reports))


def _groups(reports: Sequence[RunReport]) -> list[list[RunReport]]:
    """Reports of one command on different hosts at the same time are of one training, unless they have a rank twice."""
    groups: list[list[RunReport]] = []
    for report in sorted(reports, key=lambda report: (report.started_at, report.host)):
        for group in groups:
            ends_s = max(seconds_of(other.started_at) + other.duration_s for other in group)
            if (
                _command(group[0]) == _command(report)
                and all(
                    other.host != report.host and _rank_numbers(other).isdisjoint(_rank_numbers(report))
                    for other in group
                )
                and seconds_of(report.started_at) <= ends_s
            ):
                group.append(report)
                break
        else:
            groups.append([report])
    return groups


def _rank_numbers(report: RunReport) -> set[int]:
    return {rank.rank for rank in report.ranks}


def _command(report: RunReport) -> tuple[str, ...]:
    arguments = iter(report.command)
    retained = []
    for word in arguments:
        option = _OF_A_NODE.fullmatch(word)
        if option is None:
            retained.append(word)
        elif "=" not in word:
            next(arguments, None)
    return tuple(retained)


def _run(group: Sequence[RunReport]) -> FleetRun:
    ranks = sorted(((rank, report.host) for report in group for rank in report.ranks), key=lambda pair: pair[0].rank)
    several = len(group) > 1
    of_nodes = [(f, report.host) for report in group for f in report.findings if not several or f.id not in _COMPARED]
    hosts = {rank.rank: host for rank, host in ranks}
    again = [
        (finding, hosts.get(finding.subject.rank) if finding.subject.rank is not None else None)
        for finding in (judged(_watched([rank for rank, _ in ranks])) if several else ())
        if finding.id in _COMPARED
    ]
    steps_ms = [rank.step_ms for rank, _ in ranks if rank.step_ms is not None]
    return FleetRun(
        command=_command(group[0]),
        hosts=tuple(report.host for report in group),
        ranks=len(ranks),
        world_size=max((report.world_size for report in group if report.world_size), default=None),
        step_ms=round(sum(steps_ms) / len(steps_ms), 3) if steps_ms else None,
        verdict=worst_verdict(finding.status for finding, _ in (*of_nodes, *again)),
        findings=tuple(_problems([*of_nodes, *again])),
    )


def _problems(found: Sequence[tuple[FlatFinding, str | None]]) -> Iterator[RunFinding]:
    problems = [(finding, host) for finding, host in found if finding.status in PROBLEMS]
    for finding, host in sorted(problems, key=lambda pair: PROBLEMS.index(pair[0].status)):
        text = finding.found.text if finding.found else finding.reason or ""
        status: Verdict = finding.status.value  # type: ignore[assignment]  # a problem is no skip
        yield RunFinding(finding.id, status, host, finding.subject.rank, text, finding.likely)


def _watched(ranks: Sequence[RankReport]) -> Watched:
    """The ranks of all nodes as those of one: their steps are the points over time, of which all have equally many."""
    points = min((len(rank.over_time) for rank in ranks if rank.over_time), default=0)
    return Watched(
        ranks=tuple(
            WatchedRank(
                rank=rank.rank, pid=rank.pid, gpu=rank.gpu, finished=rank.steps, ending="normal",
                steps=tuple(_step(rank, number) for number in range(points)) if rank.over_time else (),
                loader=bool(rank.data_ms),
            )
            for rank in ranks
        )
    )  # fmt: skip


def _step(rank: RankReport, number: int) -> TimedStep:
    point = rank.over_time[number]
    cpu_ms = [0.0] * len(PHASES)
    cpu_ms[FORWARD] = rank.compute_cpu_ms or 0.0  # only the sum over the parts of compute is compared
    queued = _by_phase(point.queued) if point.queued is not None else (0.0,) * len(PHASES)
    return TimedStep(number, _by_phase(point.phases), tuple(cpu_ms), queued, rank.rows or 0.0, rank.elements or 0.0)


def _by_phase(phases: PhaseMs) -> tuple[float, ...]:
    return tuple(getattr(phases, name) for name in PHASES)
