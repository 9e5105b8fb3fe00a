"""The node's status now: the last report's verdict if the report is fresh, else unknown. Pure."""

from __future__ import annotations

import datetime
import uuid
from typing import NamedTuple

import msgspec

from gpudoctor.agent.consecutive_failures import Alarm, FailureStreak, alarms
from gpudoctor.agent.state import Last, Moment
from gpudoctor.exits import COULD_NOT
from gpudoctor.report.model import Report, Run, SourceSummary, Verdict, error_report

# tolerates a run that starts late on a busy machine; a run that never starts must still show as stale
LATE_SHARE = 0.5


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
        said = self.report.reason if self.report.error is None else f"UNKNOWN {self.report.error}"
        waits = [alarm.check for alarm in self.alarms if alarm.status.value == "warn"]
        repeated = f"; repeatedly: {', '.join(dict.fromkeys(waits))}" if waits else ""
        return f"{said}{repeated} ({self.age_s or 0:.0f} s old)"


class ScrapeFigures(NamedTuple):
    """What the metrics of one scrape are made from."""

    standing: NodeStatus
    interval_s: float
    runs: dict[str, int]  # by outcome: "report", "none"
    state_kept: bool
    simulated: bool


def standing(last: Last | None, now: Moment, *, interval_s: float, deadline_s: float, strikes: int) -> NodeStatus:
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


def no_report(why: str, began: Moment, ended: Moment, host: str, source: SourceSummary) -> Report:
    """The report for a run that produced none: verdict unknown, with the reason as its error."""
    run = Run(
        id=str(uuid.uuid4()),
        started_at=datetime.datetime.fromtimestamp(began.unix_s, datetime.timezone.utc).isoformat("T", "seconds"),
        duration_s=round(max(0.0, ended.since_boot_s - began.since_boot_s), 3),
        level="quick",
        source=source,
    )
    return error_report(run, why, COULD_NOT, reason="UNKNOWN the check gave no report", hostname=host)
