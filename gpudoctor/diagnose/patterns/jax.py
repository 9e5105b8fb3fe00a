"""Lines of JAX and XLA: tasks that never came or fell silent, and threads that wait for others in a collective."""

from __future__ import annotations

import re

from gpudoctor.diagnose.events import Event

_TASK = re.compile(r"/job:[^/\s]{1,80}/(?:replica:\d+/)?task:(?P<rank>\d{1,6})\b")
_MISSING = re.compile(r"[Tt]imed out task names:")
_UNHEALTHY = re.compile(r"tasks are unhealthy")
# one of these is in each line that is read here
_WORDS = re.compile(r"task names:|tasks are unhealthy|may be stuck|is unstuck|Termination timeout")
_WAITS = re.compile(
    r"This thread has been waiting for `(?P<op>[^`;]{1,300})[^`]{0,2000}` for \d+ seconds and may be stuck"
    r"|Termination timeout (?:for|of) `(?P<ended>[^`;]{1,300})[^`]{0,2000}` of \d+ seconds exceeded"
)


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
        if not _WORDS.search(text):
            self._below = None
            return []
        self._below = "missing" if _MISSING.search(text) else "silent" if _UNHEALTHY.search(text) else None
        if "Thread is unstuck" in text:
            return [Event(role="progress", what="unstuck")]
        if waits := _WAITS.search(text):
            detail: dict[str, str | int] = {"op": waits["op"] or waits["ended"]}
            if waits["op"]:  # a warning only: the others may still come
                detail["warning"] = 1
            return [Event(role="wait", what="rendezvous_wait", detail=detail)]
        return []
