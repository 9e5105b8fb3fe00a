"""The report of a run, as `gpudoctor.run/1` has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median, quantiles
from typing import NamedTuple

import msgspec

from gpudoctor.checks.core.finding import PROBLEMS, Advice, Evidence, Expected, Finding, Found, Status, Verdict
from gpudoctor.checks.core.subject import Subject
from gpudoctor.diagnose.diagnosis import Diagnosis
from gpudoctor.report.model import Tool
from gpudoctor.run.findings.ends import HANGS
from gpudoctor.run.findings.run_check import findings_of, run_checks
from gpudoctor.run.observer.layout import PHASES
from gpudoctor.run.step_series import COMPUTE, mean_step, turns
from gpudoctor.run.watched import RunStall, Watched, WatchedRank

SCHEMA = "gpudoctor.run/1"
_MOST_POINTS = 60
_DIED = "process_died_unknown"  # of a rank in a hang: that it gave up waiting, or was ended


class PhaseMs(msgspec.Struct, frozen=True):
    """Mean time of each phase in a step, in ms; together they are the step.

    `wait`: in collectives for others; `between`: between forward, backward and optimizer (loss, clipping); `host`:
    after the optimizer until the next batch or forward.
    """

    data: float
    forward: float
    backward: float
    optimizer: float
    wait: float
    between: float
    host: float


class RankPoint(msgspec.Struct, frozen=True):
    """The phases over some consecutive steps, from step `step` on; `queued`: time in them without a CPU."""

    step: int
    phases: PhaseMs
    queued: PhaseMs | None = None


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """One rank. Times are means over the steps after warm-up; `step_p95_ms` is of single
    steps, of means of neighbouring ones in a run of many thousands. `queued`: of the time in each phase that without
    a CPU, null on a GPU."""

    rank: int
    host: str
    pid: int
    gpu: int | None
    steps: int
    step_ms: float | None = None
    step_p95_ms: float | None = None
    compute_ms: float | None = None
    wait_ms: float | None = None
    data_ms: float | None = None
    host_ms: float | None = None
    phases: PhaseMs | None = None
    queued: PhaseMs | None = None
    compute_cpu_ms: float | None = None
    warm_up_steps: int = 0
    warm_up_ms: float | None = None
    rows: float | None = None
    elements: float | None = None
    memory_mib: float | None = None
    memory_growth_mib: float | None = None
    ended: str = ""
    error: str | None = None
    over_time: tuple[RankPoint, ...] = ()


class ShownParts(NamedTuple):
    """A step as people are shown it, in ms: its parts, without the time in which the rank lacked a CPU; and that."""

    compute: float
    wait: float
    data: float
    host: float
    no_cpu: float


def shown_parts(phases: PhaseMs, queued: PhaseMs | None) -> ShownParts:
    """The parts of one rank's step: those that the findings speak of."""
    none = {name: getattr(queued, name) if queued is not None else 0.0 for name in PHASES}
    ms = {name: getattr(phases, name) - none[name] for name in PHASES}
    compute = sum(ms[PHASES[phase]] for phase in COMPUTE)
    return ShownParts(compute, ms["wait"], ms["data"], ms["host"], sum(none.values()))


class FlatFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON form of a finding: that of `check`, and the id."""

    id: str
    status: Status
    subject: Subject
    found: Found | None = None
    expected: Expected | None = None
    evidence: tuple[Evidence, ...] = ()
    likely: str | None = None
    advice: tuple[Advice, ...] = ()
    reason: str | None = None


class Throughput(msgspec.Struct, frozen=True):
    """Of all ranks together, after warm-up: steps, rows and elements of the model's first input in a second."""

    steps_per_s: float
    rows_per_s: float | None
    elements_per_s: float | None


class Precheck(msgspec.Struct, frozen=True):
    """The check of the node before the start."""

    level: str
    verdict: str
    reason: str


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one run of a command. `signal` is the one that ended the command.

    `settings` are the variables that were set for it. `diagnosis` is null if the command ended well. `notes` say what
    was not seen, and why, and which rank took long in a few steps.
    """

    schema: str = SCHEMA
    tool: Tool
    command: tuple[str, ...]
    host: str
    started_at: str
    duration_s: float
    exit_code: int
    signal: str | None
    verdict: Verdict
    reason: str
    world_size: int | None
    precheck: Precheck | None
    settings: dict[str, str]
    throughput: Throughput | None
    ranks: tuple[RankReport, ...]
    findings: tuple[FlatFinding, ...]
    stalls: tuple[RunStall, ...]
    diagnosis: Diagnosis | None
    notes: tuple[str, ...] = ()
    kept: str | None = None
    error: str | None = None

    @property
    def news_of_logs(self) -> Diagnosis | None:
        """The diagnosis, if it has a cause that no finding tells: a hang is told by where its ranks stand."""
        cause = self.diagnosis.cause if self.diagnosis is not None else None
        stood = any(not stall.resumed for stall in self.stalls)
        is_known = cause is None or (cause.what in HANGS and bool(self.stalls)) or (cause.what == _DIED and stood)
        return None if is_known else self.diagnosis


def judged(watched: Watched) -> tuple[FlatFinding, ...]:
    """All findings, in the order of the checks."""
    return tuple(
        FlatFinding(id=check.id, **{name: getattr(finding, name) for name in FlatFinding.__struct_fields__[1:]})
        for check in run_checks()
        for finding in findings_of(check, watched)
    )


def as_finding(flat: FlatFinding) -> Finding:
    return Finding(**{name: getattr(flat, name) for name in FlatFinding.__struct_fields__[1:]})


def reason_of(findings: Iterable[FlatFinding]) -> str:
    """The worst finding in a line."""
    bad = sorted((f for f in findings if f.status in PROBLEMS), key=lambda f: PROBLEMS.index(f.status))
    if not bad:
        return ""
    first = bad[0]
    text = first.found.text if first.found else first.reason or ""
    return f"{first.id} {first.subject.label}: {text}"


def rank_report(rank: WatchedRank, host: str) -> RankReport:
    report = RankReport(
        rank=rank.rank, host=host, pid=rank.pid, gpu=rank.gpu, steps=rank.finished, ended=rank.ending, error=rank.error,
        warm_up_steps=len(rank.warm_up), warm_up_ms=_rounded(sum(s.step_ms for s in rank.warm_up)),
    )  # fmt: skip
    if not rank.steps:
        return report
    mean = mean_step(rank.steps)
    times = [step.step_ms for step in rank.steps]
    memory = [step.memory_mib for step in rank.steps]
    return msgspec.structs.replace(
        report,
        step_ms=_rounded(mean.step_ms),
        step_p95_ms=_rounded(quantiles(times, n=20)[-1]) if len(times) >= 20 else None,
        compute_ms=_rounded(mean.compute_ms),
        wait_ms=_rounded(mean.wall_ms[PHASES.index("wait")]),
        data_ms=_rounded(mean.data_ms),
        host_ms=_rounded(mean.host_ms),
        phases=_phases(mean.wall_ms),
        queued=_phases(mean.queued_ms) if rank.gpu is None else None,
        compute_cpu_ms=_rounded(mean.compute_cpu_ms),
        rows=_rounded(mean.rows) if mean.rows else None,
        elements=_rounded(mean.elements) if mean.elements else None,
        memory_mib=_rounded(max(memory)),
        memory_growth_mib=_rounded(memory[-1] - memory[0]),
        over_time=tuple(
            RankPoint(turn.number, _phases(turn.wall_ms), _phases(turn.queued_ms))
            for turn in turns(rank.steps, min(_MOST_POINTS, len(rank.steps)))
        ),
    )


def throughput(watched: Watched) -> Throughput | None:
    """Of the steps after warm-up; None without steps, and if the run stood until it was ended."""
    if any(not stall.resumed for stall in watched.stalls):
        return None
    ranks = [rank for rank in watched.ranks if rank.steps]
    if not ranks:
        return None
    step_ms = median(fmean(step.step_ms for step in rank.steps) for rank in ranks)
    if step_ms <= 0:
        return None
    each_s = 1000 / step_ms
    rows = sum(fmean(step.rows for step in rank.steps) for rank in ranks)
    elements = sum(fmean(step.elements for step in rank.steps) for rank in ranks)
    return Throughput(
        _rounded(each_s), _rounded(rows * each_s) if rows else None, _rounded(elements * each_s) if elements else None
    )


def _phases(each_ms: Sequence[float]) -> PhaseMs:
    return PhaseMs(*(_rounded(ms) for ms in each_ms))


def _rounded(value: float) -> float:
    return round(value, 3)
