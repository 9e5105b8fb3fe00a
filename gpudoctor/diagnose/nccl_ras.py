"""Tables of NCCL's RAS subsystem (ncclras, port 28028; NCCL 2.24 and newer), inside a log or alone."""

from __future__ import annotations

import re

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.prefixes import with_short_numbers

_JOB = re.compile(r"^\s+\d+\s+\d+\s+\d+\s+\d+\s+(\d+)\s*$")
_BEHIND = re.compile(
    r"Rank (?P<rank>\d{1,6}) has launched up to operation (?P<operation>\d+) ?-+ ?GPU (?P<gpu>\d+) "
    r"managed by process (?P<pid>\d+) on node (?P<host>\S+)"
)
_MISSING = re.compile(r"Process (?P<pid>\d+) on node (?P<host>\S+) managing GPU (?P<gpu>\d+)")
_RANK_MISSING = re.compile(
    r"Rank (?P<rank>\d{1,6}) -- GPU (?P<gpu>\d+) managed by process (?P<pid>\d+) on node (?P<host>\S+)"
)


def read_ras(lines: list[str], file: int) -> list[Event]:
    """The world size, ranks that launched fewer operations than others, and processes that do not answer."""
    if not any("Communicators" in line or "Job summary" in line for line in lines):
        return []
    events: list[Event] = []
    counts: list[Event] = []
    section = ""
    for number, line in enumerate(map(with_short_numbers, lines), 1):
        for word in ("INCOMPLETE", "DEAD", "TIMEOUT", "MISMATCH"):
            if line.strip().startswith(word) or re.match(rf"#\d+-\d+ .*{word}", line):
                section = word
        if job := _JOB.match(line):
            events.append(
                Event(
                    role="fact", what="world", file=file, line=number, text=line.strip(), detail={"world": int(job[1])}
                )
            )
        elif behind := _BEHIND.search(line):
            counts.append(_event("operations", behind, file, number, line))
            counts[-1].detail["operation"] = int(behind["operation"])
        elif section in ("DEAD", "INCOMPLETE", "TIMEOUT") and (
            gone := _RANK_MISSING.search(line) or _MISSING.search(line)
        ):
            event = _event("process_died_unknown", gone, file, number, line)
            event.role = "cause"
            events.append(event)
    most = max((e.number("operation") or 0 for e in counts), default=0)
    for event in counts:
        if (event.number("operation") or 0) < most:
            event.role, event.what = "cause", "rank_behind"
            events.append(event)
    return events


def _event(what: str, found: re.Match[str], file: int, number: int, line: str) -> Event:
    rank = found.groupdict().get("rank")
    return Event(
        role="fact",
        what=what,
        file=file,
        line=number,
        text=line.strip(),
        host=found["host"].rstrip(",:;"),
        gpu=found["gpu"],
        pid=int(found["pid"]),
        rank=int(rank) if rank is not None else None,
    )
