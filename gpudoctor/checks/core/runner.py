"""Runs checks: measures the time of each, catches its exceptions, and collects the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.driver_messages import events_not_judged
from gpudoctor.checks.core.each_gpu import shown_by_driver
from gpudoctor.checks.core.finding import PROBLEMS, WRONG, Finding, Status, skip, unknown, worst
from gpudoctor.checks.core.peer_gaps import gaps_marked
from gpudoctor.checks.core.registry import Check, Level
from gpudoctor.checks.core.source_conflicts import conflicts_marked
from gpudoctor.checks.core.subject import NODE as NODE_SUBJECT
from gpudoctor.facts.model.node import Node

NO_GPU = "no GPU in scope to look at"


class CheckResult(msgspec.Struct, frozen=True):
    """The findings of one check; `status` is the worst of theirs."""

    id: str
    title: str
    level: Level
    status: Status
    duration_ms: float
    findings: tuple[Finding, ...]

    @property
    def domain(self) -> str:
        return self.id.partition(".")[0]

    @property
    def warns(self) -> bool:
        """Whether it warns of something, even if its status is `unknown` for the sake of another part."""
        warned = any(f.status is Status.WARN and f.explained_by is None for f in self.findings)
        return self.status is Status.WARN or (self.status is Status.UNKNOWN and warned)


def run_checks(
    case: Case, checks: Iterable[Check], *, level: Level, clock: Callable[[], float], left_out: Iterable[Check] = ()
) -> tuple[CheckResult, ...]:
    """Run the checks; return one result per check in the given order, then those `left_out` by --skip as skip.

    `clock` returns seconds (time.perf_counter). A check that raises is `unknown` with the error's text, or `fail` if
    it had found one; a check without findings had nothing to judge and is `skip`.
    """
    case = msgspec.structs.replace(case, limits={c.id: c.limits for c in (*checks, *left_out)})
    doubted = conflicts_marked(gaps_marked(case.node))
    ran = tuple(_run(case, doubted, check, level, clock) for check in checks)
    return ran + tuple(_result(c, 0.0, (skip(NODE_SUBJECT, "left out by --skip"),)) for c in left_out)


def _run(case: Case, doubted: Node, check: Check, level: Level, clock: Callable[[], float]) -> CheckResult:
    started = clock()
    if not check.runs_at(level):
        return _result(check, 0.0, (skip(NODE_SUBJECT, f"runs at level {check.level}; asked for {level}"),))
    findings = _judged(case, check)
    if doubted is not case.node:
        findings = _without_doubted_passes(findings, _judged(msgspec.structs.replace(case, node=doubted), check))
    # an event that was read, and whose only check has nothing to say of it, is no pass of the node; lspci lists a GPU
    # also if its driver does not run
    unseen = case.scope is None and not any(shown_by_driver(case.node, gpu) for gpu in case.gpus)
    if unseen and all(finding.status is Status.SKIP for finding in findings):
        findings += events_not_judged(case, check.events, findings[0].reason or "")
    return _result(check, (clock() - started) * 1000, tuple(findings))


def _judged(case: Case, check: Check) -> list[Finding]:
    if check.needs_gpu and not case.gpus:
        return [skip(NODE_SUBJECT, NO_GPU)]
    findings: list[Finding] = []
    try:
        for finding in check.function(msgspec.structs.replace(case, check_id=check.id)):
            findings.append(finding)
    except Exception as error:  # the only place that catches exceptions of checks
        reason = f"the check itself failed: {type(error).__name__}: {error}"
        # what was found wrong before is still wrong; what passed may have been judged by the same mistake
        findings = [found for found in findings if found.status in PROBLEMS] + [unknown(NODE_SUBJECT, reason)]
    return findings or [skip(NODE_SUBJECT, "nothing here to judge")]


def _without_doubted_passes(findings: list[Finding], doubted: list[Finding]) -> list[Finding]:
    """The findings, those that rest on doubtful values as they are without them: a doubt ends a pass, and no failure.

    If the peers are skipped all the same, the values were never judged, and a doubt about them changes nothing.
    """
    judged = {found.status for found in (*findings, *doubted)} - {Status.SKIP, Status.UNKNOWN}
    if not judged and any(found.status is Status.SKIP and found.subject.kind == "gpu" for found in doubted):
        return findings
    wrong = [found for found in findings if found.status in WRONG]
    named = {found.subject for found in wrong}
    failed = {found.subject for found in wrong if found.status is Status.FAIL}
    others = [_no_failure(found) for found in doubted if found.status not in WRONG or found.subject not in named]
    others = [found for found in others if found.status is not Status.UNKNOWN or found.subject not in failed]
    place = {found.subject: number for number, found in reversed(list(enumerate(findings)))}
    return sorted((*wrong, *others), key=lambda found: place.get(found.subject, len(place)))


def _no_failure(finding: Finding) -> Finding:
    """What doubtful values would make wrong is unknown."""
    if finding.status not in WRONG:
        return finding
    return unknown(finding.subject, finding.found.text if finding.found else finding.reason or "", *finding.evidence)


def _result(check: Check, duration_ms: float, findings: tuple[Finding, ...]) -> CheckResult:
    status = worst(f.status for f in findings)
    return CheckResult(check.id, check.title, check.level, status, round(duration_ms, 3), findings)
