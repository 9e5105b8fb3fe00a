"""Steps `quick` and `under-load`: repeated quick checks, idle and beside a load, must all give the same statuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from time import sleep

import msgspec

from acceptance.children import beside
from acceptance.plain_loops import LOOPS, NOTHING_TO_RUN_ON, LoadOrder
from acceptance.run import AcceptanceRun, Item, agreed, could_not, differs
from gpudoctor.process.own_program import own_python
from gpudoctor.report.model import Report

_LOAD_START_S = 120.0
# NVML's utilisation covers up to the last second: an immediate check would take our load for a user's job
_SETTLE_S = 2.0
_BAD = ("fail", "unknown")
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
    if run.on_cpu:
        yield could_not("quick checks beside a load on GPUs: the load ran on the CPU")


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
