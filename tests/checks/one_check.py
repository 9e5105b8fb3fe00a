"""Runs one check as the runner does, and small GPUs to run it on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.checks.core.registry import registry
from gpudoctor.checks.core.runner import CheckResult, run_checks
from gpudoctor.facts.model.gpu import Gpu, GpuPair, Settings
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.node import Environment, Node, Variable


def judge(check_id: str, node: Node, measurements: Measurements | None = None, **case: Any) -> CheckResult:
    """The result of one check at the highest level, with the limits that the runner fills in."""
    [check] = [c for c in registry() if c.id == check_id]
    full = Case(node=node, measurements=measurements or Measurements(), **case)
    [result] = run_checks(full, [check], level="burn", clock=lambda: 0.0)
    return result


def only(result: CheckResult, status: Status) -> Finding:
    """The one finding with this status."""
    [finding] = [f for f in result.findings if f.status is status]
    return finding


def text_of(finding: Finding) -> str:
    """All text of a finding, to search in."""
    parts = [finding.reason, finding.likely, finding.found.text if finding.found else None]
    parts.append(finding.expected.text if finding.expected else None)
    parts += [f"{e.source} {e.value}" for e in finding.evidence]
    parts += [f"{a.text} {a.command}" for a in finding.advice]
    return " | ".join(part for part in parts if part)


def words(result: CheckResult) -> str:
    return " || ".join(text_of(finding) for finding in result.findings)


def expect(result: CheckResult, status: Status, *parts: str, **subject: Any) -> None:
    """Assert the status of a check, that its findings say all of this, and what the one with this status is about."""
    text = words(result)
    assert (result.status, [part for part in parts if part not in text]) == (status, []), text
    if subject:
        finds([finding for finding in result.findings if finding.status is status], status, **subject)


def blames(result: CheckResult, status: Status, *parts: str, **subject: Any) -> None:
    """Assert the status of a check, and if it is no pass, what its findings say and are about."""
    assert result.status is status
    if status is not Status.PASS:
        expect(result, status, *parts, **subject)


def finds(
    findings: Iterable[Finding],
    status: str,
    *parts: str,
    found: str | None = None,
    expected: str | None = None,
    **subject: Any,
) -> None:
    """Assert that there is one finding, with this status, that it says all of this, and what it is about.

    `found` is the whole text of what was found, or the reason; `expected` the whole text of what was expected.
    """
    [finding] = findings
    text = text_of(finding)
    assert (finding.status, [part for part in parts if part not in text]) == (status, []), text
    assert found in (None, finding.found.text if finding.found else finding.reason)
    assert expected in (None, finding.expected.text if finding.expected else "")
    assert {name: getattr(finding.subject, name) for name in subject} == subject


def uuid_of(index: int) -> str:
    return f"GPU-{index}{index}{index}{index}0000-1111-2222-3333-444455556666"


def gpu(index: int, name: str = "NVIDIA H100 80GB HBM3", **facts: Any) -> Gpu:
    usual = {"uuid": uuid_of(index), "memory_total_mib": 81559, "settings": Settings(mig_enabled=False)}
    return Gpu(index, f"0000:{0x10 + index:02x}:00.0", name=name, **{**usual, **facts})


def gpus(count: int, name: str = "NVIDIA H100 80GB HBM3", **facts: Any) -> tuple[Gpu, ...]:
    return tuple(gpu(index, name, **facts) for index in range(count))


def pairs(count: int, **facts: Any) -> tuple[GpuPair, ...]:
    return tuple(GpuPair(a, b, **facts) for a in range(count) for b in range(a + 1, count))


def env(**variables: str) -> Environment:
    return Environment(variables=tuple(Variable(name, value) for name, value in variables.items()))
