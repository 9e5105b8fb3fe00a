"""Whom the lines of a cause name, if they do not show who is at fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gpudoctor.diagnose.diagnosis import Mentioned
from gpudoctor.diagnose.events import Event
from gpudoctor.lazy import lazy_pattern

_LOCAL_RANK = lazy_pattern(r"(?:--|\()local[_-]rank[= :]{1,2}(\d{1,6})\b")
_PIDS = lazy_pattern(r"\(pid(?:\(s\))?:? (\d{1,10}(?:, \d{1,10})*)\)")
_OF_A_JOB = lazy_pattern(r"\*\*\* (?:JOB|STEP) [\d.]+ ON (\w[\w.-]*)(?=\s)")  # Slurm's: the first host of the job


def mentioned_in(events: Sequence[Event]) -> Mentioned | None:
    """The ranks, processes, hosts and GPUs that the events come from, or name; None if there are none.

    The rank of a line that gives a local rank, a task or a pid may be derived: that number is told in its place.
    """
    own = _outside_lists(events)
    local_ranks = [e.local_rank for e in own] + [int(n) for e in events for n in _LOCAL_RANK.findall(e.text)]
    listed = [n for e in events for each in _PIDS.findall(e.text) for n in each.split(", ")]
    hosts = [e.host or (job[1] if (job := _OF_A_JOB.search(e.text)) else None) for e in events]
    mentioned = Mentioned(
        ranks=_each(e.rank for e in own if (e.local_rank, e.task) == (None, None)),
        local_ranks=_each(local_ranks),
        tasks=_each(e.task for e in own),
        pids=_each([*(e.pid for e in own if e.rank is None), *map(int, listed)]),
        hosts=tuple(sorted({host for host in hosts if host})),
        gpus=tuple(sorted({e.gpu for e in events if e.gpu})),
    )
    return mentioned if mentioned.words else None


def _outside_lists(events: Sequence[Event]) -> list[Event]:
    """All but those that share a line: its list may be longer than they are, unless it is of ranks that ended."""
    lines = Counter((e.file, e.line) for e in events)
    return [e for e in events if lines[e.file, e.line] == 1 or (e.role == "exit" and e.word("by") == "spawn")]


def _each(numbers: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(sorted({number for number in numbers if number is not None}))
