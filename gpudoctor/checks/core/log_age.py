"""How long ago the kernel logged something."""

from __future__ import annotations

from gpudoctor.checks.core.case import Case
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import HostEvent

DAY_S = 86_400.0


def age_s(case: Case, event: HostEvent) -> float | None:
    """Seconds since the last line of the event; None if the log or the node does not tell."""
    up_s = known(case.node.host.uptime_s)
    return None if up_s is None or event.last_s is None else max(0.0, up_s - event.last_s)


def is_recent(case: Case, event: HostEvent) -> bool:
    """Whether it came within the last day, or nothing tells when: in a text that somebody saved all of it counts."""
    age = age_s(case, event)
    return age is None or age <= DAY_S
