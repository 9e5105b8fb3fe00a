"""The steps of the acceptance run, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.acceptance.driver_step import driver
from gpudoctor.acceptance.ending_steps import interrupt, left_behind, shm_entries
from gpudoctor.acceptance.quick_steps import quick, under_load, verdicts
from gpudoctor.acceptance.rate_steps import all_reduce, rates
from gpudoctor.acceptance.result import Item, could_not, differs
from gpudoctor.acceptance.run import AcceptanceRequest, AcceptanceRun, Step
from gpudoctor.acceptance.settings_step import settings
from gpudoctor.acceptance.smi_step import facts
from gpudoctor.report.model import Report

# Steps `standard`, `full` and `burn`: each level as a user runs it.

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


NAMES = (
    *("driver", "quick", "facts", "standard", "full", "rates", "all-reduce", "under-load", "burn"),
    *("settings", "interrupt", "left-behind"),
)
# many times what each takes on a healthy node: a step at its deadline hangs, and says so
_QUICK_S = 10.0
_BURN_MORE_S = 900.0  # its start, the round that it ends with, its report


def wanted_steps(request: AcceptanceRequest) -> tuple[Step, ...]:
    """The steps that were asked for."""
    shm = shm_entries()

    def nothing_left(run: AcceptanceRun) -> Iterator[Item]:
        return left_behind(run, shm)

    steps = (
        Step("driver", "every driver call and field id, timed", 180.0, driver),
        Step("quick", "quick check, twice", 180.0, quick),
        Step("facts", "facts against nvidia-smi -q -x", 300.0, facts),
        Step("standard", "level standard", 600.0, standard),
        Step("full", "level full", 1200.0, full),
        Step("rates", "GEMM, memory, host link against loops", 900.0, rates),
        Step("all-reduce", "all_reduce against nccl-tests", 300.0, all_reduce),
        Step("under-load", "quick checks beside a load", 300.0 + _QUICK_S * request.repeats, under_load),
        Step("burn", "level burn", (request.burn_s or 0.0) + _BURN_MORE_S, burn),
        Step("settings", "a power cap, a locked clock", 900.0, settings),
        Step("interrupt", "Ctrl-C in the middle of a check", 180.0, interrupt),
        Step("left-behind", "what the run left behind", 180.0, nothing_left),
    )
    return tuple(
        step for step in steps if step.name not in request.skip and (not request.only or step.name in request.only)
    )
