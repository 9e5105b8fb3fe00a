"""Steps `standard`, `full` and `burn`: each level as a user runs it."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.acceptance.quick_steps import verdicts
from gpudoctor.acceptance.result import Item, could_not, differs
from gpudoctor.acceptance.run import AcceptanceRun
from gpudoctor.report.model import Report

_BURN_GPU_S, _BURN_CPU_S = 180.0, 10.0
_NOT_ASKED = "not asked for"


def standard(run: AcceptanceRun) -> Iterator[Item]:
    """Level standard: collectives and the DDP train."""
    yield from level_items(run.check("--level", "standard"))


def full(run: AcceptanceRun) -> Iterator[Item]:
    """Level full: links, compute, memory, every collective, strategies."""
    yield from level_items(run.check("--level", "full"))


def burn(run: AcceptanceRun) -> Iterator[Item]:
    """Level burn: full again and again, with the drift judged."""
    asked_s = run.request.burn_s or (_BURN_CPU_S if run.on_cpu else _BURN_GPU_S)
    yield from level_items(run.check("--level", "burn", "--duration", f"{asked_s:g}"))


def level_items(report: Report) -> Iterator[Item]:
    """What failed or is unknown, what went wrong in the ranks, and what the level could not put under load."""
    yield from verdicts(report)
    for problem in report.measurements.problems:
        who = "" if problem.rank is None else f"rank {problem.rank}: "
        yield differs(f"{problem.probe} {problem.kind}: {who}{problem.text}")
    launch = report.measurements.launch
    if launch is not None and launch.backend == "gloo":
        yield could_not(f"level {report.run.level} on GPUs: it ran on {launch.world_size} CPU ranks")
    elif launch is None:
        gaps = {gap.reason for gap in report.measurements.not_run.values() if gap.reason != _NOT_ASKED}
        said = "; ".join(sorted(gaps)) or "gpudoctor started no ranks"
        yield could_not(f"level {report.run.level} under load: {said}")
    elif skipped := _skipped(report):
        yield could_not(f"level {report.run.level}: {'; '.join(skipped)}")


def _skipped(report: Report) -> list[str]:
    """The probes that ranks on GPUs did not run, and why."""
    return [f"{name}: {gap.reason}" for name, gap in report.measurements.not_run.items() if gap.reason != _NOT_ASKED]
