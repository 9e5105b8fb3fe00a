"""Finds where one attempt of a job ends in a log and the next begins: agents restart jobs, schedulers requeue them."""

from __future__ import annotations

import itertools

from gpudoctor.diagnose.events import TROUBLE, Event

REQUEUED = ("preempted", "time_limit", "cancelled")  # by a scheduler; no failure if the job went on later
STEPS_OF_WORK = 3


def restarts(events: list[Event]) -> list[int]:
    """The lines of one file after which another attempt begins."""
    agents: dict[str | int, list[Event]] = {}
    for event in events:
        if event.role == "exit" and event.detail.get("by") == "agent":
            agents.setdefault(event.detail.get("agent", 0), []).append(event)
    lines = [e.line for e in events if e.what == "restart"]
    for agent, exits in agents.items():
        for exit_told, next_told in itertools.pairwise(exits):
            new_pid = exit_told.pid != next_told.pid
            later = (next_told.time_s or 0) - (exit_told.time_s or 0) > 0.5
            again = any(_begins_again(e) for e in events if exit_told.line < e.line < next_told.line)
            if new_pid and ((later and agent != 0) or again):
                lines.append(exit_told.line)
        if exits and not lines and len(agents) == 1 and _goes_on_well(events, exits[-1].line):
            lines.append(exits[-1].line)
    lines += [e.line for e in events if e.what in REQUEUED and e.role == "ending" and _works_again(events, e.line)]
    return sorted(set(lines))


def _works_again(events: list[Event], line: int) -> bool:
    """Whether a job that a scheduler ended made progress later: it was requeued and writes to the same file."""
    after = [e for e in events if e.line > line]
    steps = [e.number("step") or 0 for e in after if e.role == "progress"]
    before = [e.number("step") or 0 for e in events if e.line < line and e.role == "progress"]
    anew = any(e.role == "done" or _begins_again(e) for e in after)
    return anew and len(steps) >= STEPS_OF_WORK and bool(before) and max(steps) > max(before)


def _begins_again(event: Event) -> bool:
    return event.what in ("member", "connect_stale", "comm", "world")


def _goes_on_well(events: list[Event], line: int) -> bool:
    """Whether new work is done after this line, and nothing fails."""
    after = [e for e in events if e.line > line]
    if any(e.role in ("wrapper", "exit", "closed", *TROUBLE) for e in after):
        return False
    steps = [e.number("step") or 0 for e in after if e.role == "progress"]
    before = [e.number("step") or 0 for e in events if e.line <= line and e.role == "progress"]
    finished = any(e.role == "done" for e in after)
    return bool(steps) and bool(before) and len(steps) >= 2 and (max(steps) > max(before) or finished)
