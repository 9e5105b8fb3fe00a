"""The node's status now: the last report's verdict if the report is fresh, else unknown; and its alarms. Pure."""

from __future__ import annotations

from typing import NamedTuple
from uuid import uuid4

import msgspec

from gpudoctor.checks.core.finding import Status
from gpudoctor.process.exit_codes import COULD_NOT
from gpudoctor.report.model import Report, Run, SourceSummary, Verdict, error_report
from gpudoctor.report.prometheus import statuses
from gpudoctor.text.units import rfc3339

_AT_ONCE = (Status.FAIL, Status.UNKNOWN)
# tolerates a run that starts late on a busy machine; a run that never starts must still show as stale
LATE_SHARE = 0.5


class Moment(msgspec.Struct, frozen=True):
    """A point in time: the boot id, the seconds since that boot (suspends included), and Unix time for people.

    An age is computed from the boot clock, and only within one boot, so that no step of the wall clock, no suspend and
    no reboot makes a report look younger than it is.
    """

    boot: str
    since_boot_s: float
    unix_s: float

    def age_s(self, now: Moment) -> float | None:
        """Seconds from this moment to `now`; None if they are from different boots or in the wrong order."""
        age = now.since_boot_s - self.since_boot_s
        return age if self.boot == now.boot and age >= 0 else None


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


class Last(msgspec.Struct, frozen=True):
    """The last run: when it began and ended, its report, and the streaks after it."""

    began: Moment
    ended: Moment
    report: Report
    strikes: tuple[FailureStreak, ...] = ()


class NodeStatus(msgspec.Struct, frozen=True):
    """The node's status. `report`, `strikes` and `alarms` are set only while the report is fresh, else `why_not` is.

    `healthy`: the report is fresh and its verdict is pass or warn.
    """

    verdict: Verdict
    last: Last | None = None
    report: Report | None = None
    why_not: str | None = None
    age_s: float | None = None
    strikes: tuple[FailureStreak, ...] = ()
    alarms: tuple[Alarm, ...] = ()

    @property
    def healthy(self) -> bool:
        return self.verdict in ("pass", "warn")

    @property
    def line(self) -> str:
        """One line for people: the verdict, the reason and the report's age."""
        if self.report is None:
            return f"UNKNOWN {self.why_not}"
        reported = self.report.reason if self.report.error is None else f"UNKNOWN {self.report.error}"
        waits = [alarm.check for alarm in self.alarms if alarm.status.value == "warn"]
        repeated = f"; repeatedly: {', '.join(dict.fromkeys(waits))}" if waits else ""
        return f"{reported}{repeated} ({self.age_s or 0:.0f} s old)"


class ScrapeFigures(NamedTuple):
    """What the metrics of one scrape are made from."""

    status: NodeStatus
    interval_s: float
    runs: dict[str, int]  # by outcome: "report", "none"
    state_kept: bool
    simulated: bool


def status_at(last: Last | None, now: Moment, *, interval_s: float, deadline_s: float, strikes: int) -> NodeStatus:
    """The status at `now`: a report is fresh for 1.5 intervals plus a run's deadline, and only within one boot."""
    if last is None:
        return NodeStatus("unknown", why_not="there is no report yet")
    age_s, limit_s = last.ended.age_s(now), (1 + LATE_SHARE) * interval_s + deadline_s
    if age_s is None:
        return NodeStatus("unknown", last, why_not="the last report is from before this machine's last boot")
    if age_s > limit_s:
        why = f"the last report is {age_s:.0f} s old, and stale after {limit_s:.0f} s"
        return NodeStatus("unknown", last, why_not=why, age_s=age_s)
    alarming = alarms(last.report, last.strikes, strikes)
    return NodeStatus(last.report.verdict, last, last.report, None, age_s, last.strikes, alarming)


def streaks_after(before: tuple[FailureStreak, ...], report: Report) -> tuple[FailureStreak, ...]:
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


def no_report(why: str, began: Moment, ended: Moment, host: str, source: SourceSummary) -> Report:
    """The report for a run that produced none: verdict unknown, with the reason as its error."""
    run = Run(
        id=str(uuid4()),
        started_at=rfc3339(began.unix_s),
        duration_s=round(max(0.0, ended.since_boot_s - began.since_boot_s), 3),
        level="quick",
        source=source,
    )
    return error_report(run, why, COULD_NOT, reason="UNKNOWN the check gave no report", hostname=host)


def _key(check: str, gpu: str, uuid: str) -> tuple[str, str]:
    # a GPU's index may change at a reboot
    return check, uuid or gpu
