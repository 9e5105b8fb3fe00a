"""Typed events, each from one line or dump, and a log of them that stays bounded."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from math import ceil
from typing import Literal, TypeVar

import msgspec

Role = Literal[
    "cause",  # may be the first failure
    "echo",  # may be one, or follow from another rank's end
    "wait",  # a collective timed out
    "stuck",  # a watchdog made no progress
    "victim",  # a peer or the store went away
    "exit",  # how a process ended
    "ending",  # a scheduler or a user ended the job
    "closed",  # a launcher ended the process
    "wrapper",  # something failed, without a reason
    "progress",  # the job went on
    "done",  # the job reported its end
    "said",  # bad news that no table knows; `what` is its class
    "fact",  # places, sizes, everything else
]

V = TypeVar("V")
MOST_RANKS = 1 << 20  # a larger rank or world size is a damaged line
TROUBLE = ("cause", "echo", "wait", "stuck", "victim")
MAX_TEXT = 600  # torch's own words for a full GPU, with its advice at their end, are 450
_MAX_OF_A_KIND = 64
_LAST_OF_A_KIND = 3  # as many steps show that work went on
_MAX_EVENTS = 50_000


def clipped(text: str, most: int = MAX_TEXT) -> str:
    """The text, or its beginning and a mark that there is more of it."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."


class Event(msgspec.Struct, kw_only=True):
    """One piece of information from a line. `what` is a key of `causes` or a reader's own word.

    Unknown fields are None. `time_s`: seconds within a year without time zone, since logs leave out year and zone.
    `gpu`: a PCI bus id, or the process's own index. `strength`: 3 decisive, 2 likely, 1 weak.
    `detail`: its keys are in docs/event-details.md.
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

    @property
    def place(self) -> tuple[int, int]:
        """The file, and the attempt in it: lines of one place are in the order of time."""
        return self.file, self.attempt

    def number(self, name: str) -> int | None:
        """The detail, if it is a number."""
        value = self.detail.get(name)
        return value if isinstance(value, int) else None

    def word(self, name: str) -> str | None:
        """The detail, if it is text."""
        value = self.detail.get(name)
        return value if isinstance(value, str) else None


def only(values: Iterable[V]) -> V | None:
    """The value that all are, if there is exactly one.

    >>> only([3, 3]), only([3, 4]), only([])
    (3, None, None)
    """
    found = {*values}
    return found.pop() if len(found) == 1 else None


class EventLog:
    """Events in order of file and line; of each kind and place only the first 64 and the last 3 are kept.

    A step tells in `longest_step_s` how long the longest one up to it was, since those between are not kept.
    """

    def __init__(self) -> None:
        self._longest: dict[object, tuple[float, float]] = {}
        self._events: list[Event] = []
        self._counts: dict[object, int] = {}
        self._last: dict[object, deque[Event]] = {}

    def add(self, event: Event) -> None:
        """Keep the event, unless there are many like it."""
        event.text = clipped(event.text)
        key = (event.role, event.what, event.file, event.rank, event.local_rank, event.pid, event.host)
        count = self._counts.get(key, 0) + 1
        self._counts[key] = count
        if event.role == "progress" and event.time_s is not None and len(self._longest) < _MAX_EVENTS:
            before_s, longest_s = self._longest.get(key, (event.time_s, 0.0))
            longest_s = max(longest_s, abs(event.time_s - before_s))
            self._longest[key] = event.time_s, longest_s
            if longest_s:
                event.detail["longest_step_s"] = ceil(longest_s)
        if count > _MAX_OF_A_KIND or len(self._events) >= _MAX_EVENTS:
            if event.role in ("progress", "done") or len(self._last) < _MAX_EVENTS:
                self._last.setdefault(key, deque(maxlen=_LAST_OF_A_KIND)).append(event)
            return
        self._events.append(event)

    def extend(self, events: Iterable[Event]) -> None:
        """Add several events."""
        for event in events:
            self.add(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(sorted([*self._events, *itertools.chain(*self._last.values())], key=lambda e: (e.file, e.line)))
