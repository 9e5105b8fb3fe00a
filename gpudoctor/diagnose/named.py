"""Whom the lines of a cause name, if they do not show who is at fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpudoctor.diagnose.diagnosis import Named
from gpudoctor.diagnose.events import Event
from gpudoctor.lazy import lazy_pattern
from gpudoctor.statements.about import about, place_in

_LABEL = lazy_pattern(r"(?i)\b(local[_ -]?rank|pid)(?:s|\(s\))?[ =:#]{1,2}(\d{1,10})\b")
_OF_A_JOB = lazy_pattern(r"\*\*\* (?:JOB|STEP) [\d.]+ ON (\w[\w.-]*)")  # Slurm's: the first host of the job


def named_in(events: Sequence[Event]) -> Named | None:
    """The ranks, processes, hosts and GPUs that the events come from, or name; None if there are none."""
    labels = [(label.lower()[0], int(number)) for e in events for label, number in _LABEL.findall(e.text)]
    unranked = [e for e in events if e.rank is None]
    hosts = [e.host or place_in(e.text) or (job[1] if (job := _OF_A_JOB.search(e.text)) else None) for e in events]
    gpus = [e.gpu or about(e.text).gpu_index for e in events]
    named = Named(
        ranks=_each(e.rank for e in events),
        local_ranks=_each([*(e.local_rank for e in unranked), *(n for label, n in labels if label == "l")]),
        tasks=_each(e.task for e in unranked),
        pids=_each([*(e.pid for e in unranked), *(n for label, n in labels if label == "p")]),
        hosts=tuple(sorted({host for host in hosts if host})),
        gpus=tuple(sorted({str(gpu) for gpu in gpus if gpu is not None})),
    )
    return named if named.words else None


def _each(numbers: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(sorted({number for number in numbers if number is not None}))
