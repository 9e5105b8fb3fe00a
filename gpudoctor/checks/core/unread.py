"""Facts that were not read, as findings: a value that is Missing never passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpudoctor.checks.core.finding import Finding, skip, unknown
from gpudoctor.checks.core.subject import Subject
from gpudoctor.facts.model.missing import Missing


def unread(subject: Subject, what: str, missing: Missing) -> Finding:
    """The finding for a fact that is Missing: unknown if reading it failed, else skip."""
    reason = f"{what}: {missing.reason}"
    return unknown(subject, reason) if missing.kind == "failed" else skip(subject, reason)


def first_failed(values: Iterable[object]) -> Missing | None:
    """The first value that could not be read (kind "failed"; absent, unsupported and denied values do not count)."""
    return next((value for value in values if isinstance(value, Missing) and value.kind == "failed"), None)


def failed_readings(subject: Subject, *values: tuple[str, object]) -> Iterator[Finding]:
    """An `unknown` finding for each named value that could not be read, as it may hide a fault."""
    return (unread(subject, what, failed) for what, value in values if (failed := first_failed([value])))


def first_unread(subject: Subject, *values: tuple[str, object]) -> Finding | None:
    """The first of the `failed_readings`; None if all values were read."""
    return next(failed_readings(subject, *values), None)
