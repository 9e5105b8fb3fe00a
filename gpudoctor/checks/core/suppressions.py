"""Known problems that an operator has accepted until a given day and for a stated reason."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

from gpudoctor.checks.core.finding import Finding, Status, worst
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.node import short_bus_id


class Suppression(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Set aside warn, fail and unknown findings of `check`.

    `everything` prevents one character ("*") from switching off all alarms of a node by accident.
    """

    check: Annotated[str, msgspec.Meta(description="An id or a glob")]
    reason: Annotated[str, msgspec.Meta(description="Why, for those who read the report")]
    until: Annotated[datetime.date, msgspec.Meta(description="The last day on which the suppression is valid")]
    gpu: Annotated[
        str | int | None, msgspec.Meta(description="A UUID, a bus id or an index; without it every subject matches")
    ] = None
    everything: Annotated[
        bool, msgspec.Meta(description='Must be true if `check` names all quick checks, as "*" does')
    ] = False


def apply_suppressions(
    results: Iterable[CheckResult], rules: Iterable[Suppression], today: datetime.date
) -> tuple[tuple[CheckResult, ...], tuple[str, ...]]:
    """Return the results with suppressed findings turned to skip (never to pass), and notes for the report.

    `suppressed` keeps each finding's original status: for `--require` none of them counts as a verdict.
    """
    rules = tuple(rules)
    live = [rule for rule in rules if today <= rule.until]
    notes = [
        f"suppression of {rule.check} ended on {rule.until} ({rule.reason}): it no longer holds"
        for rule in rules
        if today > rule.until
    ]
    before = tuple(results)
    after = tuple(_applied(result, live) for result in before)
    for old, new in zip(before, after, strict=True):
        for was, now in zip(old.findings, new.findings, strict=True):
            if now.status is not was.status:
                notes.append(f"{new.id}, {now.subject.label}: {now.reason}")
    return after, tuple(notes)


def _applied(result: CheckResult, rules: list[Suppression]) -> CheckResult:
    own = [rule for rule in rules if fnmatchcase(result.id, rule.check) or result.domain == rule.check]
    if not own:
        return result
    findings = tuple(_set_aside(finding, own) for finding in result.findings)
    return msgspec.structs.replace(result, findings=findings, status=worst(f.status for f in findings))


def _set_aside(finding: Finding, rules: list[Suppression]) -> Finding:
    if finding.status in (Status.PASS, Status.SKIP):
        return finding
    subject = finding.subject
    names = {str(name).lower() for name in (subject.gpu, subject.uuid, subject.bus_id) if name is not None}
    for rule in rules:
        if rule.gpu is None or _short(str(rule.gpu)) in names:
            was = finding.found.text if finding.found else finding.reason
            reason = f"suppressed until {rule.until} ({rule.reason}); was {finding.status.value}: {was}"
            return msgspec.structs.replace(finding, status=Status.SKIP, reason=reason, suppressed=finding.status)
    return finding


def _short(gpu: str) -> str:
    """The name in lower case; a bus id of nvidia-smi (00000000:BB:00.0) or lspci (bb:00.0) in the form of findings."""
    return short_bus_id(gpu) if ":" in gpu else gpu.strip().lower()
