"""Steps `quick`, `under-load` and `training`: quick checks, idle and beside a load, and what they cost a training.

The statuses of repeated quick checks must all be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median
from time import monotonic, sleep

import msgspec

from acceptance.assumptions import beside_assumed, constant, not_measured
from acceptance.children import beside
from acceptance.driver_child import CHILD, DriverReading, where
from acceptance.plain_loops import LOOPS, NOTHING_TO_RUN_ON, LoadOrder, StepTimes, TrainOrder
from acceptance.run import AcceptanceRun, Item, agreed, could_not, differs
from gpudoctor.facts import deadlines
from gpudoctor.process.own_program import own_python
from gpudoctor.report.model import Report

_LOAD_START_S = 120.0
# NVML's utilisation covers up to the last second: an immediate check would take our load for a user's job
_SETTLE_S = 2.0
_BAD = ("fail", "unknown")
_CALLS = "nvml-under-load.json"
_OF_CALLS = (constant(deadlines, "CALL"), constant(deadlines, "START"))
_PHASE_S, _PHASE_CPU_S = 10.0, 1.0
_STEP_TOLERANCE = 0.03  # steps of one training differ by so much from one 10 s to the next
_OF_DISTURBANCE = ("docs/contracts.md: level quick is safe beside running jobs",)
Statuses = dict[str, str]


def quick(run: AcceptanceRun) -> Iterator[Item]:
    """Two quick checks must give the same statuses, without a fail or an unknown."""
    first = run.check("--level", "quick", name="quick")
    second = run.check("--level", "quick", name="quick-warm")
    times = " and ".join(f"{each.run.duration_s:.2f} s" for each in (first, second))
    yield from compared(statuses(first), statuses(second), f"the first and the second quick check ({times})")
    yield from verdicts(second)


def under_load(run: AcceptanceRun) -> Iterator[Item]:
    """Quick checks beside a load on every GPU must give the same statuses, none worse than on the idle node."""
    idle = run.reports.get("quick-warm") or run.check("--level", "quick", name="quick-warm")
    uuids = loaded_gpus(run)
    if not uuids and not run.on_cpu:
        yield could_not("no GPU of this node may be put under load (see the step standard)")
        return
    order = msgspec.json.encode(LoadOrder(uuids)).decode()
    seen: list[Statuses] = []
    times: list[float] = []
    with beside(
        own_python(LOOPS, "main", order),
        environ=run.environ,
        cwd=run.folder,
        deadline_s=min(_LOAD_START_S, run.left_s),
        may_end_with=NOTHING_TO_RUN_ON,
    ) as said:
        for _ in range(run.request.repeats if said == "running" else 0):
            report = run.check("--level", "quick", name="quick-under-load")
            seen.append(statuses(report))
            times.append(report.run.duration_s)
        if seen:
            run.raw[_CALLS] = run.module(*CHILD)
    if not run.on_cpu:
        sleep(_SETTLE_S)
    if not seen:
        yield could_not("quick checks beside a load: there is no PyTorch that sees the GPUs")
        return
    rows = [{"seconds": seconds, "statuses": each} for seconds, each in zip(times, seen, strict=True)]
    run.raw["quick-under-load.json"] = msgspec.json.encode(rows)
    what = "a CPU load" if run.on_cpu else "a load on every GPU"
    usual = sorted(times)[len(times) // 2]
    words = f"{len(seen)} quick checks beside {what} (median {usual:.2f} s, longest {max(times):.2f} s)"
    yield from _all_alike(seen, words)
    before = statuses(idle)
    worse = sorted(
        {name for each in seen for name, status in each.items() if status in _BAD and before.get(name) not in _BAD}
    )
    for name in worse:
        said_so = Counter(each.get(name, "not there") for each in seen)
        yield differs(f"{name}: {before.get(name, 'not there')} on the idle node, beside a load {_counted(said_so)}")
    yield _calls(run)
    if run.on_cpu:
        yield could_not("quick checks beside a load on GPUs: the load ran on the CPU")


def _calls(run: AcceptanceRun) -> Item:
    """The slowest call of each kind, with which gpudoctor's deadlines must be generous."""
    reading = msgspec.json.decode(run.raw[_CALLS], type=DriverReading)
    slowest: dict[str, float] = {}
    for call in reading.calls:
        slowest[call.name + where(call.thread)] = max(slowest.get(call.name + where(call.thread), 0.0), call.ms / 1e3)
    if run.on_cpu or not slowest:
        return not_measured(5, f"no driver beside a load ({len(reading.calls)} calls were timed)", *_OF_CALLS)
    return judged_calls(slowest, reading.hung)


def judged_calls(slowest_s: dict[str, float], hung: list[str]) -> Item:
    """The slowest call beside a load against the deadline of a call."""
    name, seconds = max(slowest_s.items(), key=lambda one: one[1])
    measured = hung[0] if hung else f"beside a load {name} took {seconds:.3f} s, the longest of all calls"
    limit_s = deadlines.START.seconds if name.split()[0] in deadlines.START_CALLS else deadlines.CALL.seconds
    return beside_assumed(5, not hung and seconds < limit_s, measured, f"less than {limit_s:g} s", *_OF_CALLS)


def training(run: AcceptanceRun) -> Iterator[Item]:
    """Steps of a training alone, beside quick checks one after another, and alone again."""
    uuids = loaded_gpus(run)
    if not uuids and not run.on_cpu:
        yield not_measured(5, "no GPU of this node may be put under load (see the step standard)", *_OF_DISTURBANCE)
        return
    file = run.folder / "steps.json"
    alone_s = _PHASE_CPU_S if run.on_cpu else _PHASE_S
    with beside(
        own_python(LOOPS, "main", msgspec.json.encode(TrainOrder(uuids[:1], str(file))).decode()),
        environ=run.environ,
        cwd=run.folder,
        deadline_s=min(_LOAD_START_S, run.left_s),
        may_end_with=NOTHING_TO_RUN_ON,
    ) as said:
        if said:
            sleep(alone_s)
            began_s, checks = monotonic(), 0
            while monotonic() - began_s < alone_s:
                run.check("--level", "quick", name="quick-beside-training")
                checks += 1
            ended_s = monotonic()
            sleep(alone_s)
    if not said:
        yield not_measured(5, "there is no PyTorch that sees the GPUs", *_OF_DISTURBANCE)
        return
    run.raw["measured-training.json"] = file.read_bytes()
    times = msgspec.json.decode(file.read_bytes(), type=StepTimes)
    file.unlink()
    if run.on_cpu:
        text = f"a training on the CPU shares it with the checks ({len(times.took_s)} steps, {checks} quick checks)"
        yield not_measured(5, text, *_OF_DISTURBANCE)
        return
    yield judged_training(times, began_s, ended_s, checks)


def judged_training(times: StepTimes, began_s: float, ended_s: float, checks: int) -> Item:
    """The usual step while quick checks ran against the usual step before and after."""
    phases: tuple[list[float], list[float], list[float]] = ([], [], [])
    for at_s, took_s in zip(times.began_s, times.took_s, strict=True):
        phases[0 if at_s < began_s else 1 if at_s < ended_s else 2].append(took_s)
    if not all(phases):
        return not_measured(5, "the training made no step in one of its three phases", *_OF_DISTURBANCE)
    before, during, after = (median(phase) * 1e3 for phase in phases)
    alone = (before + after) / 2
    if abs(before - after) / alone > _STEP_TOLERANCE:
        text = f"the training itself is not steady: {before:.2f} and {after:.2f} ms a step without checks beside it"
        return not_measured(5, text, *_OF_DISTURBANCE)
    slower = during / alone - 1
    measured = (
        f"{during:.2f} ms a step beside {checks} quick checks one after another, {alone:.2f} ms alone ({slower:+.1%}); "
        f"longest step {max(phases[1]) * 1e3:.1f}, alone {max(phases[0] + phases[2]) * 1e3:.1f} ms"
    )
    assumed = f"no cost to a job: within {_STEP_TOLERANCE:.0%}"
    return beside_assumed(5, slower <= _STEP_TOLERANCE, measured, assumed, *_OF_DISTURBANCE)


def loaded_gpus(run: AcceptanceRun) -> tuple[str, ...]:
    """The UUIDs of the GPUs that gpudoctor put under load: they are free, so load is allowed on them."""
    if run.on_cpu:
        return ()
    launched = [report.measurements.launch for report in run.reports.values()]
    if not any(launched):
        launched = [run.check("compute.gemm", "--level", "full", name="who-may-be-loaded").measurements.launch]
    ranks = next((launch.ranks for launch in launched if launch is not None), ())
    return tuple(rank.uuid for rank in ranks if rank.uuid is not None)


def statuses(report: Report) -> Statuses:
    """The status of each check by id."""
    return {check.id: check.status.value for check in report.checks}


def compared(one: Statuses, other: Statuses, what: str) -> Iterator[Item]:
    """A difference for each check whose status differs; one agreement if there is none."""
    odd = [name for name in one if one[name] != other.get(name)]
    for name in odd:
        yield differs(f"{what}: {name} is {one[name]}, then {other.get(name, 'not there')}")
    if not odd:
        yield agreed(f"{what} say the same in {len(one)} checks")


def _all_alike(seen: list[Statuses], what: str) -> Iterator[Item]:
    names = dict.fromkeys(name for each in seen for name in each)
    odd = {name: said for name in names if len(said := Counter(each.get(name, "not there") for each in seen)) > 1}
    for name, said in odd.items():
        yield differs(f"{what}: {name} is {_counted(said)}")
    if not odd:
        yield agreed(f"{what} say the same in {len(names)} checks")


def _counted(said: Counter[str]) -> str:
    return ", ".join(f"{count} x {status}" for status, count in said.most_common())


def verdicts(report: Report) -> Iterator[Item]:
    """A difference for each fail and unknown, because the node is assumed healthy; warnings in one line.

    Findings explained by another one are left out. An unknown about a CPU rank, as on a machine too busy to
    compare them, says nothing about a GPU.
    """
    bad = 0
    launch = report.measurements.launch
    on_cpu = launch is not None and launch.backend == "gloo"
    for check in report.checks:
        for finding in check.findings:
            if finding.status.value in _BAD and finding.explained_by is None:
                bad += 1
                said = finding.reason or (finding.found.text if finding.found else "")
                of_cpu = on_cpu and finding.subject.kind == "rank" and finding.status.value == "unknown"
                line = f"{check.id} {finding.status.value}: {finding.subject.label}: {said}"
                yield could_not(f"{line} (a CPU rank)") if of_cpu else differs(line)
    if not bad and report.verdict in _BAD:
        bad += 1
        yield differs(f"level {report.run.level}: the verdict is {report.verdict}, and no finding says so")
    warned = [check.id for check in report.checks if check.status.value == "warn"]
    if not bad:
        tail = f"; warnings: {', '.join(warned)}" if warned else ""
        yield agreed(f"level {report.run.level}: {report.counts.passed} checks pass, none fails or is unknown{tail}")
