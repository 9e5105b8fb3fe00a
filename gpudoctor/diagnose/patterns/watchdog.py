"""Watchdogs of collectives: torch's NCCL watchdog and heartbeat monitor, Horovod's stall inspector, XLA's coordination."""

from __future__ import annotations

import re

from gpudoctor.diagnose.events import Event, Role

# torch 1.13 to 2.15
_WORK = re.compile(
    r"WorkNCCL\(\s*(?:SeqNum=(?P<seq>\d+),\s*)?OpType=(?P<op>\w+)(?:,\s*NumelIn=(?P<numel_in>\d+))?"
    r"(?:,\s*NumelOut=(?P<numel_out>\d+))?(?:,\s*TensorShape=\[(?P<shape>[\d, ]*)\])?.{0,80}?Timeout\(ms\)=(?P<timeout_ms>\d+)\)"
)
_TIMED_OUT = re.compile(r"Watchdog caught collective operation\s+timeout|timed out in blocking wait")
_NAMED = re.compile(r"\[Rank (\d+)\] Watchdog caught")
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<pg>\d+)(?: PG GUID (?P<guid>[\w-]+))?(?: ?\((?P<desc>[^)]{0,120})\))? Rank (?P<group_rank>\d+)\]"
)
_STATUS = re.compile(
    r"at\s*work(?:\s*sequence\s*id)?:\s*(?P<seq>-?\d+)(?:,|\s*PG status:)\s*last enqueued(?: NCCL)? work:\s*(?P<enqueued>-?\d+)"
    r",\s*(?:last started(?: NCCL)? work:\s*(?P<started>-?\d+),\s*)?last completed(?: NCCL)? work:\s*(?P<completed>-?\d+)"
)
_AT_TIMEOUT = re.compile(
    r"Timeout at NCCL work: (?P<seq>-?\d+), last enqueued NCCL work: (?P<enqueued>-?\d+), last completed NCCL work: (?P<completed>-?\d+)"
)
_HEARTBEAT = re.compile(r"Heartbeat monitor timed out.{0,200}?(?:workMetaList_\.size\(\)\s*=\s*(?P<works>\d+)|$)")
_STUCK = re.compile(
    r"watchdog got stuck for\s+(?P<seconds>\d+)\s*seconds(?:.{0,1200}?workMetaList_\.size\(\)\s*=\s*(?P<works>\d+))?"
)
# one of these is in each first piece of a message that terminals wrap
CONTINUES = re.compile(
    r"Watchdog caught|Exception \(either|failure detected|ProcessGroupNCCL|Heartbeat|Timeout at NCCL|\bRank \d{1,6}\]\s*$"
)
DECIDES = re.compile(r"got stuck|Watchdog caught|Heartbeat monitor|work sequence id|at work:")
# one of these is in each line that is read here: most lines are ruled out by this alone
_WORDS = re.compile(
    r"imeout|atchdog|eartbeat|blocking wait|NCCL operations|data inconsistency|failed collective|debug info"
)
_CONSEQUENCE = re.compile(
    r"Some NCCL operations have failed or timed out|To avoid data inconsistency|watchdog thread terminated with exception: "
    r"NCCL|Stack trace of the failed collective|preparing to dump debug info"
)
_READINGS: tuple[tuple[Role, str, re.Pattern[str]], ...] = (
    *(("wait", "group_status", pattern) for pattern in (_STATUS, _AT_TIMEOUT)),
    *(("stuck", "watchdog_stuck", pattern) for pattern in (_HEARTBEAT, _STUCK)),
    ("wrapper", "watchdog_abort", _CONSEQUENCE),
)
_TASK = re.compile(r"/job:[^/\s]{1,80}/(?:replica:\d+/)?task:(?P<rank>\d{1,6})\b")
_MISSING_TASKS = re.compile(r"[Tt]imed out task names:")
_UNHEALTHY = re.compile(r"tasks are unhealthy")
# the same for the lines of XLA
_WORDS_OF_XLA = re.compile(r"task names:|tasks are unhealthy|may be stuck|is unstuck|Termination timeout")
_XLA_WAITS = re.compile(
    r"This thread has been waiting for `(?P<op>[^`;]{1,300})[^`]{0,2000}` for \d+ seconds and may be stuck"
    r"|Termination timeout (?:for|of) `(?P<ended>[^`;]{1,300})[^`]{0,2000}` of \d+ seconds exceeded"
)
# Horovod 0.11 to 0.28
_MISSING = re.compile(r"(?<![\w./-])(?P<op>[\w./-]{1,1000}) \[missing ranks: ?(?P<ranks>\d[\d, ]{0,400})\]")
_READY = re.compile(r"(?<![\w./-])(?P<op>[\w./-]{1,1000}) \[ready ranks: ?(?P<ranks>\d[\d, ]{0,400})\]")
_HEADER = re.compile(r"(?:Missing|Stalled) ranks: ?$")
_STALL = "submitted to be reduced, gathered or broadcasted by subset of ranks"
_ROW = re.compile(r"(?P<ranks>\d{1,6}): \[(?P<op>[^\s,\]]{1,200})")
_MOST_OPS = 16


def read_watchdog(text: str) -> Event | None:
    """The event for a collective that did not end, or for a watchdog that is stuck itself.

    >>> event = read_watchdog("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=44, OpType=ALLREDUCE, "
    ...                       "Timeout(ms)=1800000) ran for 1800024 milliseconds before timing out.")
    >>> event.what, event.number("seq"), event.word("op")
    ('nccl_timeout', 44, 'ALLREDUCE')
    """
    if not _WORDS.search(text):
        return None
    group = _details(_GROUP.search(text))
    if _TIMED_OUT.search(text):
        work = _WORK.search(text)
        event = Event(role="wait", what="nccl_timeout", detail={**_details(work), **group})
        if (named := _NAMED.search(text)) and "terminated with exception" in text:
            event.rank = int(named[1])
        return event
    for role, what, pattern in _READINGS:
        if found := pattern.search(text):
            return Event(role=role, what=what, detail={**_details(found), **group})
    return None


def _details(found: re.Match[str] | None) -> dict[str, str | int]:
    if found is None:
        return {}
    parts = {name: value.strip() for name, value in found.groupdict().items() if value is not None}
    return {name: int(value) if name not in ("op", "desc", "shape", "guid") else value for name, value in parts.items()}


class StallReader:
    """Reads the warnings; newer versions print one row for each rank below a header."""

    def __init__(self) -> None:
        self._rows = False

    def read(self, text: str) -> list[Event]:
        """One event for each tensor, at most 16 of a line. Only warnings: training may go on after them.

        The sentence above the tensors is one too: the list may be cut off.
        """
        if self._rows and (row := _ROW.match(text)):
            return [_stalled("missing", row)]
        self._rows = bool(_HEADER.search(text))
        found: list[Event] = []
        if " ranks:" in text:
            found = [_stalled("missing", match) for match in _MISSING.finditer(text)]
            found += [_stalled("ready", match) for match in _READY.finditer(text)]
        if not found and _STALL in text:
            return [Event(role="wait", what="stalled_tensor", detail={"warning": 1})]
        return found[:_MOST_OPS]


def _stalled(which: str, found: re.Match[str]) -> Event:
    return Event(role="wait", what="stalled_tensor", detail={"op": found["op"], which: found["ranks"], "warning": 1})


class CoordinationReader:
    """Reads the tasks that XLA's coordination service lists below a header, and what XLA's rendezvous warns of."""

    def __init__(self) -> None:
        self._below: str | None = None

    def read(self, text: str) -> list[Event]:
        """The event of a listed task, or of a thread that waits; empty for other lines."""
        if self._below is not None and (task := _TASK.match(text)):
            if self._below == "missing":
                return [Event(role="wait", what="store_timeout", detail={"key_rank": task["rank"]})]
            return [Event(role="cause", what="heartbeat_lost", rank=int(task["rank"]))]
        if not _WORDS_OF_XLA.search(text):
            self._below = None
            return []
        self._below = "missing" if _MISSING_TASKS.search(text) else "silent" if _UNHEALTHY.search(text) else None
        if "Thread is unstuck" in text:
            return [Event(role="progress", what="unstuck")]
        if waits := _XLA_WAITS.search(text):
            detail: dict[str, str | int] = {"op": waits["op"] or waits["ended"]}
            if waits["op"]:  # a warning only: the others may still come
                detail["warning"] = 1
            return [Event(role="wait", what="rendezvous_wait", detail=detail)]
        return []
