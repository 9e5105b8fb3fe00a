"""Runs as they are watched, made up: ranks with so many steps of given phases."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from gpudoctor.checks.core.finding import worst_verdict
from gpudoctor.report.model import Tool
from gpudoctor.run.report import FlatFinding, RunReport, judged, rank_report, throughput
from gpudoctor.run.step_series import TimedStep
from gpudoctor.run.watched import Watched, WatchedRank

# data, forward, backward, optimizer, wait, between, host
USUAL_MS = (1.0, 6.0, 10.0, 2.0, 1.0, 0.5, 0.5)


def rank(number: int, *, steps: int = 120, noise: float = 0.02, seed: int = 0, **changes: Any) -> WatchedRank:
    """A CPU rank; `wall`, `cpu`, `elements` and `memory` (of step n) replace those of its steps, the rest are fields.

    `lacks`: phase -> how many ms it takes longer because the rank has no CPU.
    """
    draw = random.Random(1000 * seed + number)
    lacks = changes.pop("lacks", {})
    queued = tuple(lacks.get(phase, 0.0) for phase in range(7))
    wall = tuple(map(sum, zip(changes.pop("wall", USUAL_MS), queued, strict=True)))
    cpu = changes.pop("cpu", None)
    elements = changes.pop("elements", lambda n: 64.0)
    memory = changes.pop("memory", lambda n: 400.0)
    made = []
    for n in range(steps):
        times = tuple(ms * (1 + noise * draw.uniform(-1, 1)) for ms in wall)
        cpus = tuple(ms - q for ms, q in zip(times, queued, strict=True)) if cpu is None else cpu
        made.append(TimedStep(n, times, cpus, queued, elements(n), elements(n), memory(n)))
    fields = {
        "pid": 100 + number,
        "finished": steps,
        "steps": tuple(made),
        "ending": "normal",
        "ended_s": 9.0,
        **changes,
    }
    return WatchedRank(rank=number, loader=True, **fields)


def more(phase: int, ms: float) -> tuple[float, ...]:
    """The usual phases with one that takes so much longer."""
    return tuple(usual + (ms if n == phase else 0.0) for n, usual in enumerate(USUAL_MS))


def report_of(run: Watched, host: str = "a", **changes: object) -> RunReport:
    """What `gpudoctor run` writes on one node of a training."""
    findings = judged(run)
    made = RunReport(
        tool=Tool("gpudoctor", "0.1.0"), command=("train",), host=host, started_at="", duration_s=9.0,
        exit_code=run.exit_code, signal=None, verdict=worst_verdict(finding.status for finding in findings), reason="",
        world_size=run.world_size, precheck=None, settings={}, throughput=throughput(run), findings=findings,
        stalls=run.stalls, diagnosis=None, ranks=tuple(rank_report(each, host) for each in run.ranks),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def problems(watched: Watched) -> list[FlatFinding]:
    """Everything that is no pass and no skip."""
    return [finding for finding in judged(watched) if finding.status.value in ("warn", "fail", "unknown")]


def only(watched: Watched) -> tuple[str, int | None, str]:
    """The single problem: id, rank, and what is likely."""
    (finding,) = problems(watched)
    return finding.id, finding.subject.rank, finding.likely or ""
