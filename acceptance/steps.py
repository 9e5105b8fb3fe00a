"""The steps of the acceptance run, in the order in which they run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from time import monotonic, sleep

import msgspec

from acceptance.children import MARK, marked_processes
from acceptance.driver_steps import driver, settings
from acceptance.link_steps import nvlinks, peer_copies, shared_memory
from acceptance.process_steps import contexts, idle
from acceptance.quick_steps import quick, training, under_load, verdicts
from acceptance.rate_steps import all_reduce, rates
from acceptance.run import (
    AcceptanceRequest,
    AcceptanceRun,
    Item,
    Step,
    agreed,
    could_not,
    differs,
    found_none,
    shm_entries,
)
from acceptance.smi_step import facts
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.process.own_program import own_gpudoctor
from gpudoctor.report.model import Report

# Steps `interrupt` and `left-behind`: Ctrl-C during a check, and what remains after the whole run.

_LETTING_GO_S = 10.0  # a driver may take this long to release a process


class _Line(msgspec.Struct):
    probe: str = "launch"


def interrupt(run: AcceptanceRun) -> Iterator[Item]:
    """SIGINT as soon as a rank is working must give exit code 130 and a partial report, and leave no process."""
    sent = False

    def on_line(line: str) -> signal.Signals | None:
        nonlocal sent
        try:
            at_work = msgspec.json.decode(line, type=_Line).probe != "launch"
        except (msgspec.MsgspecError, ValueError):
            return None
        if sent or not at_work:
            return None
        sent = True
        return signal.SIGINT

    words = ("check", "--level", "standard", "--backend", run.request.backend, "--json", "--progress")
    done = run.child([*own_gpudoctor(), *words], on_line)
    if not sent:
        yield could_not("Ctrl-C in the middle of a check: no rank was started that could be interrupted")
        return
    if done.code == 130:
        yield agreed("SIGINT while ranks were at work: exit code 130")
    else:
        yield differs(f"SIGINT while ranks were at work: {done.words}, not exit code 130")
    try:
        report = msgspec.json.decode(done.stdout, type=Report)
    except (msgspec.MsgspecError, ValueError) as error:
        yield differs(f"SIGINT while ranks were at work: there is no report: {error}")
    else:
        signal_name = report.run.interrupted
        yield (agreed if signal_name == "SIGINT" else differs)(f"the partial report says: interrupted by {signal_name}")
    at_work = "SIGINT while ranks were at work left"
    yield found_none(f"{at_work} processes", _left(run.mark), f"{at_work} no process")


def left_behind(run: AcceptanceRun) -> Iterator[Item]:
    """No process of the run and no file in its TMPDIR may remain, nothing new in /dev/shm, no changed setting."""
    yield found_none("processes are left", _left(run.mark), "no process is left")
    files = sorted(path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*") if not path.is_dir())
    yield found_none(f"{len(files)} files are left in TMPDIR", files, "no file is left in TMPDIR")
    new = sorted(shm_entries() - run.shm_before)
    if new:
        yield differs(f"new in /dev/shm: {', '.join(new[:5])} (another program of this user may have made it)")
    else:
        yield agreed("nothing new is in /dev/shm")
    yield from settings_kept(run.node, run.facts())


def settings_kept(before: Node, after: Node) -> Iterator[Item]:
    """A difference for each GPU setting that has changed."""
    later = {gpu.bus_id: _settings(gpu) for gpu in after.gpus}
    changed = 0
    for gpu in before.gpus:
        for name, value in _settings(gpu).items():
            now = later.get(gpu.bus_id, {}).get(name)
            if now != value:
                changed += 1
                yield differs(f"{gpu.label}: {name} was {value}, is {now}")
    if not changed:
        yield agreed(f"the settings of {len(before.gpus)} GPUs are as before")


def _settings(gpu: Gpu) -> dict[str, object]:
    return {
        "persistence mode": known(gpu.settings.persistence),
        "compute mode": known(gpu.settings.compute_mode),
        "MIG": known(gpu.settings.mig_enabled),
        "ECC": known(gpu.ecc.enabled),
        "power limit in W": known(gpu.power.requested_limit_w),
        "application clock in MHz": known(gpu.clocks.application_graphics_mhz),
        "highest clock in MHz": known(gpu.clocks.sm_max_mhz),
    }


def _left(mark: str) -> list[str]:
    """The marked processes that remain after a grace period: a killed process takes a moment to end."""
    give_up_s = monotonic() + _LETTING_GO_S
    while (left := marked_processes(MARK, mark)) and monotonic() < give_up_s:
        sleep(0.1)
    return [f"{name} ({pid})" for pid, name in sorted(left.items())]


_BURN_GPU_S, _BURN_CPU_S = 180.0, 10.0
_NOT_ASKED = "not asked for"


def standard(run: AcceptanceRun) -> Iterator[Item]:
    """Level standard: collectives and the DDP train."""
    yield from level_items(run.check("--level", "standard"))


def full(run: AcceptanceRun) -> Iterator[Item]:
    """Level full: links, compute, memory, every collective, strategies."""
    yield from level_items(run.check("--level", "full"))


def burn(run: AcceptanceRun) -> Iterator[Item]:
    """Level burn: full repeatedly, with the drift judged."""
    asked_s = run.request.burn_s or (_BURN_CPU_S if run.on_cpu else _BURN_GPU_S)
    yield from level_items(run.check("--level", "burn", "--duration", f"{asked_s:g}"))


def level_items(report: Report) -> Iterator[Item]:
    """Failed and unknown findings, problems of the ranks, and what the level could not put under load."""
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
    """The probes that ranks on GPUs did not run, with the reasons."""
    return [f"{name}: {gap.reason}" for name, gap in report.measurements.not_run.items() if gap.reason != _NOT_ASKED]


# many times the time on a healthy node: a step that reaches its deadline hangs. More below for some of them
_QUICK_S = 10.0
STEPS = (
    Step("driver", "every driver call and field id, timed", 180.0, driver),
    Step("quick", "quick check, twice", 180.0, quick),
    Step("facts", "facts against nvidia-smi -q -x", 300.0, facts),
    Step("idle", "GPUs that wake, are loaded, are let go", 300.0, idle, (1,)),
    Step("contexts", "programs that share a GPU, and end", 600.0, contexts, (2, 3)),
    Step("shared-memory", "/dev/shm while NCCL starts", 600.0, shared_memory, (4,)),
    Step("training", "a training beside quick checks", 300.0, training, (5,)),
    Step("nvlinks", "NVLinks against nvidia-smi", 60.0, nvlinks, (10,)),
    Step("standard", "level standard", 600.0, standard),
    Step("full", "level full", 1200.0, full),
    Step("rates", "GEMM, memory, host link against loops", 1200.0, rates, (6, 7)),
    Step("all-reduce", "all_reduce against nccl-tests", 600.0, all_reduce, (9,)),
    Step("peer-copies", "copies between GPUs against nvbandwidth", 600.0, peer_copies, (8,)),
    Step("under-load", "quick checks beside a load", 300.0, under_load, (5,)),
    # for its start, the round that is running at the end, and its report
    Step("burn", "level burn", 900.0, burn),
    Step("settings", "a power cap, a locked clock", 900.0, settings),
    Step("interrupt", "Ctrl-C in the middle of a check", 180.0, interrupt),
    Step("left-behind", "what the run left behind", 180.0, left_behind),
)
NAMES = tuple(step.name for step in STEPS)
TAKES = tuple((step.name, step.measures) for step in STEPS if step.measures)


def wanted_steps(request: AcceptanceRequest) -> tuple[Step, ...]:
    """The requested steps, in order."""
    more_s = {"under-load": _QUICK_S * request.repeats, "burn": request.burn_s or 0.0}
    return tuple(
        msgspec.structs.replace(step, deadline_s=step.deadline_s + more_s.get(step.name, 0.0))
        for step in STEPS
        if step.name not in request.skip and (not request.only or step.name in request.only)
    )
