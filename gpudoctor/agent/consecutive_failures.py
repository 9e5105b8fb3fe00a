"""Counts consecutive warnings and failures per check and GPU, and decides when they are an alarm. Pure."""

from __future__ import annotations

import msgspec

from gpudoctor.checks.core.finding import Status
from gpudoctor.report.model import Report
from gpudoctor.report.prometheus import statuses

_AT_ONCE = (Status.FAIL, Status.UNKNOWN)


class FailureStreak(msgspec.Struct, frozen=True):
    """A check that warned or failed on a GPU ("" for the node) in each of the last `in_row` runs."""

    check: str
    gpu: str
    uuid: str
    in_row: int


class Alarm(msgspec.Struct, frozen=True):
    """A check whose status on a GPU ("" for the node) needs attention now."""

    check: str
    gpu: str
    uuid: str
    status: Status


def counted(before: tuple[FailureStreak, ...], report: Report) -> tuple[FailureStreak, ...]:
    """The streaks after a report: warn and fail add one, pass resets to zero.

    A check without a verdict (skip, unknown) leaves its streak unchanged. Streaks of GPUs and checks that the report
    no longer contains are dropped. A report with an error judged nothing and changes nothing.
    """
    if report.error is not None:
        return before
    rows = {_key(strike.check, strike.gpu, strike.uuid): strike.in_row for strike in before}
    after = []
    for check, gpu, uuid, status in statuses(report):
        in_row = 0 if status is Status.PASS else rows.get(_key(check, gpu, uuid), 0)
        if status in (Status.WARN, Status.FAIL):
            in_row += 1
        if in_row:
            after.append(FailureStreak(check, gpu, uuid, in_row))
    return tuple(after)


def alarms(report: Report, strikes: tuple[FailureStreak, ...], needed: int) -> tuple[Alarm, ...]:
    """The alarms after a report: fail and unknown at once, warn after `needed` consecutive runs."""
    rows = {_key(strike.check, strike.gpu, strike.uuid): strike.in_row for strike in strikes}
    return tuple(
        Alarm(check, gpu, uuid, status)
        for check, gpu, uuid, status in statuses(report)
        if status in _AT_ONCE or (status is Status.WARN and rows.get(_key(check, gpu, uuid), 0) >= needed)
    )


def _key(check: str, gpu: str, uuid: str) -> tuple[str, str]:
    # a GPU's index may change at a reboot
    return check, uuid or gpu
