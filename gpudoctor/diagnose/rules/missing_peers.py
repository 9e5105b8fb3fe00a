"""Waits without sequence numbers: for a key of the store, for a peer of gloo, for a tensor of Horovod."""

from __future__ import annotations

import re

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.job import Job
from gpudoctor.diagnose.rules.direct import minority
from gpudoctor.diagnose.rules.model import Hypothesis, at_events, host_of, named, only_rank, ranks_of, undecided

_NUMBER = re.compile(r"\d+")


def missing_ranks(job: Job, attempt: int) -> list[Hypothesis]:
    """Ranks that wait for a key of the store wait for the rank that never wrote it, usually at the start."""
    waits = job.of("wait", attempt=attempt, what="store_timeout")
    if not waits:
        return []
    if crowded := [e for e in waits if int(e.word("joined") or 0) > int(e.word("world") or 0) > 0]:
        return [_too_many(crowded)]
    keys = {int(e.detail["key_rank"]) for e in waits if e.detail.get("key_rank") is not None}
    named_ranks = keys - set(ranks_of(waits))
    ranks = tuple(sorted(named_ranks)) or _silent_at_barrier(job, attempt, waits)
    who = named(ranks) if ranks else "a rank"
    text = f"the others waited in vain for {who}: {'they' if len(ranks) > 1 else 'it'} never came that far"
    return [
        Hypothesis(
            "missing_rank",
            text,
            waits[:3],
            ranks=ranks if named_ranks else only_rank(ranks),
            confidence="likely" if ranks else "possible",
        )
    ]


def _silent_at_barrier(job: Job, attempt: int, waits: list[Event]) -> tuple[int, ...]:
    """The silent ranks, if they are the minority, and as many as the barrier counts."""
    silent = job.members - job.ranks_in_trouble(attempt)
    short = {int(e.word("world") or 0) - int(e.word("joined") or 0) for e in waits if e.word("joined")}
    few = len(silent) < len(job.members) / 2
    return tuple(sorted(silent)) if few and (not short or len(silent) in short) else ()


def _too_many(waits: list[Event]) -> Hypothesis:
    joined, world = waits[0].word("joined"), waits[0].word("world")
    text = (
        f"{joined} came to a barrier for {world}: the file or store of an earlier run, two jobs at one address, "
        "or processes that were told another world size"
    )
    return Hypothesis("rendezvous_timeout", text, waits[:3])


def gloo_timeouts(job: Job, attempt: int) -> list[Hypothesis]:
    """The rank without an error among peers that timed out hangs; gloo has no sequence numbers to compare."""
    kinds = ("gloo_timeout", "barrier_waits", "peer_timeout", "rendezvous_wait")
    waits = [e for e in job.of("wait", attempt=attempt) if e.what in kinds]
    waits = [e for e in waits if not (e.detail.get("warning") and job.worked_after(e))]
    if not waits:
        return []
    exits = job.exits(attempt)
    closed = ranks_of(job.of("closed", attempt=attempt))
    silent = _silent(job, attempt, exits)
    alive = silent <= {*closed, *exits}
    if silent and (len(silent) < len(job.members) / 2 or (alive and len(silent) == 1)):
        text = f"the others timed out waiting; {named(silent)} reported no error and was still there: it hangs"
        return [
            Hypothesis(
                "rank_hung",
                text,
                waits[:2] + [e for e in exits.values() if e.rank in silent][:2],
                ranks=only_rank(silent),
                host=host_of(e for e in job.events if e.rank in silent),
                confidence="likely" if len(silent) == 1 else "possible",
            )
        ]
    if not silent and (different := _other_calls(job, attempt)):
        return [different]
    who = named(ranks_of(waits)) if ranks_of(waits) else "a rank"
    where = f" in `{op}`" if (op := waits[0].word("op")) else ""
    text = f"{who} waited in vain for a peer{where}; which one is not in these logs"
    return [undecided("timeout_undecidable", text, waits[:3])]


def _silent(job: Job, attempt: int, exits: dict[int, Event]) -> set[int]:
    """The ranks that reported nothing until they were ended; if one of them ignored the signal to end, it alone."""
    silent = job.members - job.ranks_in_trouble(attempt)
    silent = {rank for rank in silent if rank not in exits or (exits[rank].number("code") or 0) in (-15, -9)}
    forced = silent & {*ranks_of(job.of("closed", attempt=attempt, what="forced"))}
    return forced if len(forced) == 1 else silent


def _other_calls(job: Job, attempt: int) -> Hypothesis | None:
    """All ranks wait, but their tracebacks show different collectives."""
    waits = [e for e in job.of("wait", "victim", attempt=attempt) if e.rank is not None and e.word("collective")]
    values = {e.rank: e.word("collective") or "" for e in waits if e.rank is not None}
    if len(set(values.values())) < 2 or set(values) != job.members:
        return None
    text = "; ".join(f"rank {rank} in {value}" for rank, value in sorted(values.items())[:6])
    outliers = minority(values) if len(values) > 2 else ()
    text = f"all ranks wait, but in different collectives: {text}"
    return at_events("collective_mismatch", text, waits, ranks=only_rank(outliers))


def stalled_tensors(job: Job, attempt: int) -> list[Hypothesis]:
    """Ranks that are missing for every tensor are behind; if they differ by tensor, the ranks took different paths.

    A warning after which the work went on does not count: that tensor was only late.
    """
    events = [e for e in job.of("wait", attempt=attempt) if e.what == "stalled_tensor" and not job.worked_after(e)]
    if not events:
        return []
    missing: dict[str, set[int]] = {}
    ready: dict[str, set[int]] = {}
    for event in events:
        for reported, of in (("missing", missing), ("ready", ready)):
            of.setdefault(event.word("op") or "", set()).update(map(int, _NUMBER.findall(event.word(reported) or "")))
    reporting = set[int]().union(*ready.values())
    reporting |= job.members | set(range(max(reporting, default=-1) + 1))  # ranks are numbered without a gap
    for op, arrived in ready.items():
        if arrived:
            missing.setdefault(op, set()).update(reporting - arrived)
    sets = {frozenset(absent) for absent in missing.values() if absent}
    if len(sets) == 1:
        ranks = tuple(sorted(next(iter(sets))))
        text = f"{named(ranks)} did not submit the tensors that the others wait for"
        return [Hypothesis("rank_behind", text, events[:4], ranks=ranks)]
    if sets:
        text = "; ".join(f"{named(absent)} not {op}" for op, absent in list(missing.items())[:3] if absent)
        return [Hypothesis("collective_mismatch", f"the ranks submit different tensors: {text}", events[:4])]
    text = "some ranks wait for tensors that others did not submit; which ones is not in this text"
    return [undecided("timeout_undecidable", text, events[:3])]
