"""Every fault on packaged nodes it can occur on: the right check, the right GPU, one fault to count."""

from __future__ import annotations

import pytest

from gpudoctor.checks.core.case import Expect
from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.registry import registry
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.fault_kit import SimulatedFault
from gpudoctor.facts.simulated.load import apply_faults, faults, node_names
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Report
from tests.checks.simulated_nodes import findings, healthy_report, packaged, speaks_of


def wrong(fault: SimulatedFault, name: str) -> list[str]:
    """What the judge got wrong about this fault on this node; empty if all is right."""
    node = packaged(name)
    expect = Expect(gpus=len(node.gpus)) if fault.given == "expect-gpus" else Expect()
    report = judge(apply_faults(node, [fault.name]), question=Question(level=fault.level, expect=expect))
    result = next(check for check in report.checks if check.id == fault.check)
    if result.status.value != fault.status:
        said = next((f.found.text if f.found else f.reason for f in result.findings if f.status is result.status), "")
        return [f"{name}: {fault.check} is {result.status.value}, not {fault.status}: {said}"]
    if fault.status in ("fail", "warn") and fault.kind != "node" and fault.given is None:
        return [*_not_named(fault, node, report, name), *_extra_faults(fault, report, name)]
    return _extra_faults(fault, report, name)


def _not_named(fault: SimulatedFault, node: Node, report: Report, name: str) -> list[str]:
    struck = max(node.gpus, key=lambda gpu: gpu.index)
    subjects = [f.subject for check, f in findings(report, Status(fault.status)) if check == fault.check]
    if any(speaks_of(subject, struck.index, struck.bus_id) for subject in subjects):
        return []
    return [f"{name}: {fault.check} names {[s.label for s in subjects]}, not {struck.label}"]


def _extra_faults(fault: SimulatedFault, report: Report, name: str) -> list[str]:
    """Failures unrelated to this fault: not the fault, not explained by it, not its explanation, and not the node's
    own.
    """
    own = {(check, f.subject) for check, f in findings(healthy_report(name), Status.FAIL)}
    causes = {f.explained_by for check, f in findings(report, Status(fault.status)) if check == fault.check}
    allowed = {fault.check} | {cause for cause in causes if cause}
    return [
        f"{name}: {check} fails too, unexplained: {f.found.text if f.found else f.reason}"
        for check, f in findings(report, Status.FAIL)
        if check not in allowed and f.explained_by is None and (check, f.subject) not in own
    ]


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_a_fault_trips_its_check_on_its_gpu_and_nothing_unexplained(fault: SimulatedFault) -> None:
    """On one node, for each fault another one."""
    names = nodes_of(fault)
    assert names, f"{fault.name} happens on no packaged node, so nothing tests it"
    name = names[faults().index(fault) % len(names)]
    assert not wrong(fault, name)


@pytest.mark.wide
@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_so_it_does_on_every_node(fault: SimulatedFault) -> None:
    problems = [problem for name in nodes_of(fault) for problem in wrong(fault, name)]
    assert not problems, "\n" + "\n".join(problems)


def nodes_of(fault: SimulatedFault) -> list[str]:
    return [name for name in node_names() if fault.happens_on(packaged(name))]


def test_every_fault_names_a_check_that_exists() -> None:
    ids = {check.id for check in registry()}
    assert {fault.check for fault in faults()} <= ids


def test_every_quick_check_that_facts_alone_can_fail_has_a_fault() -> None:
    tripped = {fault.check for fault in faults()}
    without = {check.id for check in registry() if check.level == "quick"} - tripped
    # balance is a matter of how a machine was built, see the three-GPU workstation in the tests of pcie.balance
    # and a simulated node says nothing in sentences
    assert without <= {"pcie.balance", "reported.failures"}


def test_two_faults_at_once_are_two_faults_in_the_report() -> None:
    node = apply_faults(packaged("hgx-h100-8"), ["pcie-width-x8@2", "nvlink-link-down@5"])
    report = judge(node)
    assert {(fault.check, fault.subject.gpu) for fault in report.faults} == {
        ("pcie.link-width", 2),
        ("nvlink.links", 5),
    }
    assert report.simulated
