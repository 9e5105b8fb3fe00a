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

# The keys of `Event.detail` that are read, by who writes them; a flag is 1, or absent
# - reader.py: `warning` (flag: whoever printed it went on), `message`, `form` and `severity` (of what was said, see
#   statements), `peer` (who was lost), `address` (of a Ray worker), `xid`, `agent` (torchrun's thread), `times` (how
#   often the last line came), `repeated` (flag: printed by a controller); of NCCL's start `comm_rank`, `world`, `dev`,
#   `bus`, `complete` (0 or 1)
# - tracebacks.py: `traceback` (flag), `type` and `message` (of the exception), `frame` (the user's last one),
#   `collective` (the call that it is in), `raised` and `raised_text` (number and text of the line that raised it),
#   `ranks` (that failed)
# - patterns/launchers.py: `code` (minus a signal's number), `by` (who reported it: agent, table, srun, own ...), `root`
#   (0 or 1: the table's first), `cut` (flag: the table lacks its beginning), `pod` (flag), `world`, `vague` (flag: the
#   job may go on without it), `helper` (0 or 1: of a program beside the job)
# - patterns/watchdog.py: of a collective `seq`, `op`, `numel_in`, `numel_out`, `timeout_ms`, `missing` and `ready`
#   (ranks); of its group `pg`, `guid`, `desc`, `enqueued`, `completed`, `works` (not ended); `key_rank` (who is waited
#   for)
# - patterns/job_facts.py: `step` (a number; of a start its name), `unit` (epoch), `within` (epoch 0's step), `one_word`
#   (flag: "done" alone), `ram_pct`, `peer`; of a start `world`, `came` (how many), `group`, `rank_0_ends` (flag: no
#   other rank logs its end)
# - named groups of the other tables: `host`, `node`, `gpu`, `pid`, `task_rank`, `tasks` (where it was), `peer`,
#   `address`; of a barrier `world`, `joined` (how many), `ranks` and `more` (who failed), `named` (who is waited for);
#   of a mismatch `a`, `b`
# - events.py: `longest_step_s`; places.py: `gpu_bus_id`; stacks.py: `operation` (the last launched), `world`

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
    `detail`: see the table above.
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
