"""The faults that the checks find on this node, now or with a saved report, and what each means for a training."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path

import msgspec

from gpudoctor.api.config import Config, threshold_overrides
from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.checks.core.registry import Check, Impact, Level, impact_of
from gpudoctor.errors import UserError
from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.plan.communication import StepTime
from gpudoctor.plan.machine import Machine
from gpudoctor.plan.rates import Rate
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Report
from gpudoctor.report.saved_report import load_report
from gpudoctor.text.output import printable
from gpudoctor.text.units import gib_text, option_ranges

# a plan names failures of any impact, but warnings of these only
_WARNINGS_OF: frozenset[Impact | None] = frozenset(
    {"wrong-results", "slow-gpu", "slow-host-link", "slow-collectives", "memory-taken", "costs"}
)


class FaultMeaning(msgspec.Struct, frozen=True):
    """A fault and what it means. `gpus` are NVML indices, none for the whole node."""

    check: str
    status: str
    gpus: tuple[int, ...]
    found: str
    means: str = ""


def check_node(
    node: Node, measurements: Measurements | None, checks: tuple[Check, ...], config: Config, gpu: str | None
) -> Report:
    """The report on the node by its facts, and by measurements if there are any."""
    level: Level = "full" if measurements is not None else "quick"
    profile = None if config.profile == "auto" else config.profile
    question = Question(
        checks=checks,
        level=level,
        gpu=gpu,
        profile=profile,
        expect=config.expect,
        limit_overrides=threshold_overrides(config),
        suppress=config.suppress,
    )
    return judge(node, measurements, question)


def measurements_of(path: Path, node: Node) -> Measurements:
    """The measurements in a report file. Raises UserError, naming the file, if it is unusable or of another node.

    The report needs no facts: the plan uses the current ones.
    """
    try:
        report = load_report(str(path), Report)
    except SourceError as error:
        way_out = "make one with gpudoctor check --level full --json -o FILE"
        raise UserError(f"--report {error}; {way_out}") from None
    if report.run.injected:
        how = ", ".join(map(printable, report.run.injected))[:200]
        raise UserError(f"--report {printable(str(path))}: it was made to go wrong (--inject {how}): make one without")
    then = {gpu.uuid or gpu.bus_id for gpu in report.gpus}
    now = {known(gpu.uuid) or gpu.bus_id for gpu in node.gpus}
    if not then & now:
        machine = f"none of its {len(then)} GPUs is in this node: it is of another machine"
        raise UserError(f"--report {printable(str(path))}: {machine}")
    return report.measurements


def unfit_gpus(report: Report | None) -> dict[int, str]:
    """GPUs that no training can start on, with the reason."""
    found: dict[int, str] = {}
    for check, finding in _roots(report):
        closed = check == "gpu.settings" and finding.found is not None and finding.found.value == "prohibited"
        bad = finding.status in (Status.FAIL, Status.UNKNOWN) and (impact_of(check) == "no-work" or closed)
        if bad and finding.subject.gpu is not None:
            found.setdefault(finding.subject.gpu, finding.text)
    return found


def troubles(report: Report | None, left_out: Container[int | None]) -> tuple[FaultMeaning, ...]:
    """Faults, and warnings that bear on a training: one line for the GPUs of each check, and for each of the node."""
    found: dict[tuple[str, str, str], FaultMeaning] = {}
    for check, finding in _roots(report):
        impact = impact_of(check)
        mixed = impact == "unequal-gpus" and finding.found is not None and finding.found.unit == "models"
        bears = finding.status is Status.WARN and (mixed or impact in _WARNINGS_OF)
        gpu, text, status = finding.subject.gpu, finding.text, finding.status.value
        if not (finding.status is Status.FAIL or bears) or gpu in left_out:
            continue
        key = (check, status, text if gpu is None else "")
        before = found.setdefault(key, FaultMeaning(check, status, (), text))
        gpus = before.gpus if gpu is None else tuple(sorted({*before.gpus, gpu}))
        if before.found != text:  # the same on other GPUs, in other words
            text = before.found.removesuffix(" and the like") + " and the like"
        found[key] = FaultMeaning(check, status, gpus, text)
    return tuple(found.values())


def meaning(trouble: FaultMeaning, machine: Machine, now: StepTime, sound: StepTime, host_sound: Rate | str) -> str:
    """What a fault means for the plan: leave the GPU out, or expect this cost.

    `sound` and `host_sound` are the step and the link to RAM that these GPUs would have with healthy PCIe links.
    """
    several, impact = option_ranges(trouble.gpus), impact_of(trouble.check)
    here = {gpu.index for gpu in machine.gpus}
    rest = sorted(here - set(trouble.gpus))
    if trouble.gpus and not rest and impact == "slow-host-link":
        return f"expect {_link_cost(machine, now, sound, host_sound)}"
    if not trouble.gpus or (not rest and impact != "memory-taken"):
        how = f"gpudoctor explain {trouble.check}"
        return f"mend it first: {how}" if trouble.status == "fail" else f"cost and fix: {how}"
    leave = f"leave {'it' if len(trouble.gpus) == 1 else 'them'} out (--gpu {option_ranges(rest)})"
    if impact == "wrong-results" and trouble.status == "fail":
        return f"{leave}: GPU {several} may fail, or compute what is wrong"
    if impact == "memory-taken":
        return f"the plan counts all memory of GPU {several} as free: end that program first"
    cost = {
        "slow-host-link": _link_cost(machine, now, sound, host_sound),
        "slow-gpu": f"every step to wait for GPU {several}",
        "unequal-gpus": f"all to wait for the slowest, and {gib_text(machine.memory_bytes)} of each to be used",
        "slow-collectives": f"{_slower_collectives(machine.collective)}: the slowest GPU sets the pace",
    }.get(impact or "")
    return f"{leave}, or {f'expect {cost}' if cost else f'see gpudoctor explain {trouble.check}'}"


def _slower_collectives(rate: Rate | str) -> str:
    if isinstance(rate, str):
        return "slower collectives"
    # a profile's figure is that of healthy links
    return f"collectives of {'' if rate.measured else 'at most '}{rate.value:.4g} GB/s"


def _link_cost(machine: Machine, now: StepTime, sound: StepTime, host_sound: Rate | str) -> str:
    slower, faster = now.communication_s, sound.communication_s
    if slower and faster and slower > faster * 1.01:
        return f"{slower:.3g} s of communication a step instead of {faster:.3g} s"
    if isinstance(machine.host, Rate) and isinstance(host_sound, Rate) and host_sound.value > machine.host.value:
        by_nvlink = machine.nvlinked == machine.gpus_per_node > 1
        unharmed = "; NVLink carries the collectives, which lose nothing" if by_nvlink else ""
        return f"copies from RAM of {machine.host.value:.3g} GB/s instead of {host_sound.value:.3g}{unharmed}"
    if isinstance(machine.host, Rate) and machine.host.measured:
        return f"copies from RAM of {machine.host.value:.3g} GB/s"
    return "slower copies between it and the host"


def mended(gpu: Gpu) -> Gpu:
    """The GPU with its PCIe link at the width that it and its slot support."""
    width = known(gpu.pcie.width_max)
    if width is None:
        return gpu
    return msgspec.structs.replace(gpu, pcie=msgspec.structs.replace(gpu.pcie, width=width))


def _roots(report: Report | None) -> Iterable[tuple[str, Finding]]:
    for result in report.checks if report else ():
        for finding in result.findings:
            if finding.explained_by is None:
                yield result.id, finding
