"""What one line or dump says, as typed events, and a log of them that stays bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

# cause: may be the first failure. echo: may be one, or follow from another rank's end. wait: a collective timed out.
# victim: a peer or the store went away. exit: how a process ended. ending: a scheduler or a user ended the job.
# wrapper: says only that something failed. progress: the job went on. done: the job says that it is finished.
Role = Literal[
    "cause", "echo", "wait", "stuck", "victim", "exit", "ending", "closed", "wrapper", "progress", "done", "fact"
]

TROUBLE = ("cause", "echo", "wait", "stuck", "victim")
MAX_TEXT = 400
_MAX_OF_A_KIND = 64
_MAX_EVENTS = 50_000


class Event(msgspec.Struct, kw_only=True):
    """One thing that a line says. `what` is a word of `causes` or a reader's own; unknown fields stay None.

    `time_s` counts seconds within a year without zone: logs leave out year and zone. `gpu` is a bus id, or the index
    that the process itself counts by. `strength`: 3 decisive, 2 likely, 1 weak.
    """

    role: Role
    what: str
    file: int = 0
    line: int = 0
    text: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    host: str | None = None
    pid: int | None = None
    gpu: str | None = None
    ip: str | None = None
    time_s: float | None = None
    attempt: int = 0
    strength: int = 2
    names_rank: bool = True
    detail: dict[str, str | int] = {}

    def number(self, name: str) -> int | None:
        """A detail that is a number."""
        value = self.detail.get(name)
        return value if isinstance(value, int) else None

    def word(self, name: str) -> str | None:
        """A detail that is text."""
        value = self.detail.get(name)
        return value if isinstance(value, str) else None


class EventLog:
    """Events in the order in which they were read; of one kind and place the first ones, and the last."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._counts: dict[object, int] = {}
        self._last: dict[object, Event] = {}
        self.left_out = 0

    def add(self, event: Event) -> None:
        """Keep it, unless many like it are there."""
        event.text = event.text[:MAX_TEXT]
        key = (event.role, event.what, event.file, event.rank, event.local_rank, event.pid, event.host)
        count = self._counts.get(key, 0) + 1
        self._counts[key] = count
        if count > _MAX_OF_A_KIND or len(self._events) >= _MAX_EVENTS:
            self.left_out += 1
            if event.role in ("progress", "done") or len(self._last) < _MAX_EVENTS:
                self._last[key] = event
            return
        self._events.append(event)

    def extend(self, events: Iterable[Event]) -> None:
        """Keep several."""
        for event in events:
            self.add(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(sorted([*self._events, *self._last.values()], key=lambda e: (e.file, e.line)))
