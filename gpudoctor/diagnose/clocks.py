"""Estimates how much the clocks of hosts differ, from events that two hosts saw at the same moment."""

from __future__ import annotations

from itertools import combinations
from statistics import median

from gpudoctor.diagnose.diagnosis import ClockSkew
from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.job import Job

_LEAST_S = 3.0  # launchers poll, and processes end one after the other: a smaller difference proves nothing
_ZONE_S = 1800.0
_NEAR_ZONE_S = 120.0
_MOST_HOSTS = 64


def clock_skews(job: Job, attempt: int) -> tuple[ClockSkew, ...]:
    """Each host against the first one, if they differ by more than simultaneous events can.

    Pairs of events: the timeout of the same number in the same process group; and the ends of two hosts of which one
    lost its connection to the other, which it notices at once. The end of a host that waited for a timeout is not used.
    """
    ends, timeouts = _ends(job, attempt), _timeouts(job, attempt)
    hosts = sorted({host for moments in (ends, *timeouts.values()) for host in moments})[:_MOST_HOSTS]
    found: dict[str, ClockSkew] = {}
    for first, other in combinations(hosts, 2):
        pairs = [moments for moments in (ends, *timeouts.values()) if first in moments and other in moments]
        if not pairs or other in found:
            continue
        seconds = median(moments[other] - moments[first] for moments in pairs)
        if abs(seconds) >= _LEAST_S:
            found[other] = ClockSkew(other, first, round(seconds, 1), _is_zone(seconds), len(pairs))
    return tuple(found.values())


def _is_zone(seconds: float) -> bool:
    """Whether this may be a difference of time zones: nearly a multiple of half an hour."""
    rest = abs(seconds) % _ZONE_S
    return abs(seconds) > _ZONE_S / 2 and min(rest, _ZONE_S - rest) <= _NEAR_ZONE_S


def _ends(job: Job, attempt: int) -> dict[str, float]:
    """When each host's launcher noticed the end; empty unless a connection was lost and no rank was timing out."""
    if job.of("wait", "stuck", attempt=attempt) or not job.of("victim", attempt=attempt):
        return {}
    told = [e for e in job.of("exit", "closed", attempt=attempt) if e.detail.get("by") != "table"]
    return _first_times(told)


def _timeouts(job: Job, attempt: int) -> dict[object, dict[str, float]]:
    """When the first rank of each host timed out, by group and sequence number."""
    groups: dict[object, list[Event]] = {}
    for event in job.of("wait", attempt=attempt):
        if event.what == "nccl_timeout" and event.number("seq") is not None:
            groups.setdefault((event.word("guid"), event.word("desc"), event.number("seq")), []).append(event)
    return {key: _first_times(events) for key, events in groups.items()}


def _first_times(events: list[Event]) -> dict[str, float]:
    found: dict[str, float] = {}
    for event in events:
        if event.host and event.time_s is not None:
            found[event.host] = min(event.time_s, found.get(event.host, event.time_s))
    return found
