"""What a report says of one GPU: its problems, worst first, and one word of health."""

from __future__ import annotations

from gpudoctor.checks.core.finding import PROBLEMS, Finding, Status
from gpudoctor.report.model import Report

_WORDS = {Status.FAIL: "FAIL", Status.UNKNOWN: "unknown", Status.WARN: "warn"}


def problems_of(report: Report, gpu: int) -> list[tuple[str, Finding]]:
    """(check id, finding) of every problem of this GPU (NVML index), worst first, causes before what they explain."""
    found = [
        (check.id, finding)
        for check in report.checks
        for finding in check.findings
        if finding.status in PROBLEMS and gpu in finding.subject.all_gpus
    ]
    return sorted(found, key=lambda row: (PROBLEMS.index(row[1].status), row[1].explained_by is not None))


def health_of(report: Report, gpu: int) -> str:
    """FAIL, unknown, warn or ok; "-" if no check judged this GPU: silence is no pass."""
    problems = problems_of(report, gpu)
    if problems:
        return _WORDS[problems[0][1].status]
    passed = any(f.status is Status.PASS and f.subject.gpu == gpu for check in report.checks for f in check.findings)
    return "ok" if passed else "-"
