"""A finding: one judged statement about one subject, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Literal

import msgspec

from gpudoctor.checks.core.subject import NODE, Subject, grouped_label
from gpudoctor.text.grouped import grouped

Number = int | float
Verdict = Literal["pass", "warn", "fail", "unknown"]


class Status(str, Enum):
    """The result of judging one subject. A check's status is the first of `WORST_FIRST` among its findings."""

    FAIL = "fail"
    UNKNOWN = "unknown"
    WARN = "warn"
    PASS = "pass"
    SKIP = "skip"


WORST_FIRST = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS, Status.SKIP)
# what an operator has to look at, worst first
PROBLEMS = WORST_FIRST[:3]
# what was judged, and is not well
WRONG = (Status.FAIL, Status.WARN)


def worst(statuses: Iterable[Status]) -> Status:
    """The worst status; SKIP if there is none, since nothing was judged."""
    return min(statuses, key=WORST_FIRST.index, default=Status.SKIP)


def worst_verdict(statuses: Iterable[Status]) -> Verdict:
    """The worst status; unknown if nothing could be judged, since that is no pass."""
    status = worst(statuses)
    return "unknown" if status is Status.SKIP else status.value


class Found(msgspec.Struct, frozen=True):
    """What was observed: text for people, and the value with its unit if there is one."""

    text: str
    value: Number | str | None = None
    unit: str | None = None


class Expected(msgspec.Struct, frozen=True):
    """What the value was judged against, and the source of that (configuration, profile, maximum, peers)."""

    text: str
    op: Literal[">=", "<=", "==", "in", "<", ">"] | None = None
    value: Number | str | None = None
    unit: str | None = None
    source: str | None = None


class Evidence(msgspec.Struct, frozen=True):
    """A raw reading as proof: its source (a call, file or dump), and the value read there."""

    source: str
    value: str


class Advice(msgspec.Struct, frozen=True):
    """One step to take, with a command to copy if there is one."""

    text: str
    command: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """One judged statement. `reason` is set for skip and unknown.

    `explained_by` is set later, by `faults`: the id of the check whose fault explains this finding.
    `suppressed` is the original status of a finding that the operator's configuration turned into a skip.
    """

    status: Status
    subject: Subject = NODE
    found: Found | None = None
    expected: Expected | None = None
    evidence: tuple[Evidence, ...] = ()
    likely: str | None = None
    advice: tuple[Advice, ...] = ()
    reason: str | None = None
    explained_by: str | None = None
    suppressed: Status | None = None

    @property
    def text(self) -> str:
        """What was found, else the reason, else the status."""
        return self.found.text if self.found else self.reason or self.status.value


def ok(subject: Subject, found: Found | str, expected: Expected | None = None, *evidence: Evidence) -> Finding:
    """A pass: judged, and nothing wrong."""
    return Finding(Status.PASS, subject, _found(found), expected, evidence)


def warn(
    subject: Subject,
    found: Found | str,
    expected: Expected | str | None,
    *evidence: Evidence,
    likely: str | None = None,
    advice: Iterable[Advice | str] = (),
) -> Finding:
    """A warning: it works, but costs speed or will cause trouble."""
    return Finding(Status.WARN, subject, _found(found), _expected(expected), evidence, likely, _advice(advice))


def fail(
    subject: Subject,
    found: Found | str,
    expected: Expected | str | None,
    *evidence: Evidence,
    likely: str | None = None,
    advice: Iterable[Advice | str] = (),
) -> Finding:
    """A failure: training would be wrong, much slower, or would not run."""
    return Finding(Status.FAIL, subject, _found(found), _expected(expected), evidence, likely, _advice(advice))


def skip(subject: Subject, reason: str) -> Finding:
    """A skip: does not apply, was not requested, or may not be tried here."""
    return Finding(Status.SKIP, subject, reason=reason)


def unknown(subject: Subject, reason: str, *evidence: Evidence, advice: Iterable[Advice | str] = ()) -> Finding:
    """An unknown: tried, without a result."""
    return Finding(Status.UNKNOWN, subject, reason=reason, evidence=evidence, advice=_advice(advice))


def jointly(findings: Sequence[Finding], found: Found) -> Finding:
    """One finding on the node for findings that are alike, as bad as the worst of them."""
    status = worst(each.status for each in findings)
    return msgspec.structs.replace(
        findings[0], status=status, subject=NODE, found=found, evidence=joint_evidence(findings)
    )


def joint_evidence(findings: Sequence[Finding]) -> tuple[Evidence, ...]:
    """The readings of findings on several subjects: first those of all, then the others with their subjects."""
    read_of = grouped((each, finding.subject) for finding in findings for each in dict.fromkeys(finding.evidence))
    return tuple(
        each if len(of) == len(findings) else Evidence(f"{grouped_label(of)}: {each.source}", each.value)
        for each, of in sorted(read_of.items(), key=lambda item: len(item[1]) < len(findings))
    )


def _found(found: Found | str) -> Found:
    return Found(found) if isinstance(found, str) else found


def _expected(expected: Expected | str | None) -> Expected | None:
    return Expected(expected) if isinstance(expected, str) else expected


def _advice(advice: Iterable[Advice | str]) -> tuple[Advice, ...]:
    return tuple(Advice(step) if isinstance(step, str) else step for step in advice)
