"""Runs checks: times each, contains its crash, and collects the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding, Status, skip, unknown, worst
from gpudoctor.checks.core.registry import LEVELS, Check, Level
from gpudoctor.checks.core.subject import NODE as NODE_SUBJECT

NO_GPU = "no GPU in scope to look at"


class CheckResult(msgspec.Struct, frozen=True):
    """What one check found; `status` is the worst of its findings."""

    id: str
    title: str
    level: Level
    status: Status
    duration_ms: float
    findings: tuple[Finding, ...]

    @property
    def domain(self) -> str:
        return self.id.partition(".")[0]


def run_checks(
    case: Case, checks: Iterable[Check], *, level: Level, clock: Callable[[], float], left_out: Iterable[Check] = ()
) -> tuple[CheckResult, ...]:
    """One result per check, in the order given; `left_out` (by --skip) come as skip.

    `clock` gives seconds (time.perf_counter). A check that raises is `unknown` with the error's
    words; a check that yields nothing looked at nothing and is `skip`.
    """
    case = msgspec.structs.replace(case, limits={c.id: c.limits for c in (*checks, *left_out)})
    ran = tuple(_run(case, check, level, clock) for check in checks)
    return ran + tuple(_result(c, 0.0, (skip(NODE_SUBJECT, "left out by --skip"),)) for c in left_out)


def _run(case: Case, check: Check, level: Level, clock: Callable[[], float]) -> CheckResult:
    started = clock()
    findings: tuple[Finding, ...]
    if LEVELS.index(check.level) > LEVELS.index(level):
        findings = (skip(NODE_SUBJECT, f"runs at level {check.level}; asked for {level}"),)
    elif check.needs_gpu and not case.gpus:
        findings = (skip(NODE_SUBJECT, NO_GPU),)
    else:
        try:
            findings = tuple(check.function(msgspec.structs.replace(case, check_id=check.id)))
        except Exception as error:  # the one place where a check's crash is contained
            reason = f"the check itself failed: {type(error).__name__}: {error}"
            findings = (unknown(NODE_SUBJECT, reason),)
        if not findings:
            findings = (skip(NODE_SUBJECT, "nothing here to judge"),)
    return _result(check, (clock() - started) * 1000, findings)


def _result(check: Check, duration_ms: float, findings: tuple[Finding, ...]) -> CheckResult:
    status = worst(f.status for f in findings)
    return CheckResult(check.id, check.title, check.level, status, round(duration_ms, 3), findings)
