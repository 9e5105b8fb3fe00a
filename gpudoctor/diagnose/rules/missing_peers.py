"""Waits without sequence numbers: for a key of the store, for a peer of gloo, for a tensor of Horovod."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.job import Attempt
from gpudoctor.diagnose.rules.direct import minority
from gpudoctor.diagnose.rules.model import Hypothesis, at_events, host_of, named, only_rank, ranks_of, undecided

_NUMBER = re.compile(r"\d+")


def missing_ranks(attempt: Attempt) -> Iterator[Hypothesis]:
    """Ranks that wait for a key of the store wait for the rank that never wrote it, usually at the start."""
    waits = attempt.of("wait", what="store_timeout")
    if crowded := [e for e in waits if int(e.word("joined") or 0) > int(e.word("world") or 0) > 0]:
        text = (
            f"{crowded[0].word('joined')} came to a barrier for {crowded[0].word('world')}: the file or store of an "
            "earlier run, two jobs at one address, or processes that were told another world size"
        )
        yield Hypothesis("rendezvous_timeout", text, crowded[:3])
    elif waits:
        keys = {int(e.detail["key_rank"]) for e in waits if e.detail.get("key_rank") is not None} - {*ranks_of(waits)}
        ranks = tuple(sorted(keys))
        text = f"the others waited in vain for {named(ranks)}: {'they' if len(ranks) > 1 else 'it'} never came that far"
        yield Hypothesis("missing_rank", text, waits[:3], "likely" if ranks else "possible", ranks)


def gloo_timeouts(attempt: Attempt) -> Iterator[Hypothesis]:
    """The rank without an error among peers that timed out hangs; gloo has no sequence numbers to compare."""
    kinds = ("gloo_timeout", "barrier_waits", "peer_timeout", "rendezvous_wait")
    waits = [e for e in attempt.of("wait") if e.what in kinds]
    waits = [e for e in waits if not (e.detail.get("warning") and attempt.job.worked_after(e))]
    if not waits:
        return
    silent = _silent(attempt)
    alive = silent <= {*ranks_of(attempt.of("closed")), *attempt.exits}
    if silent and (len(silent) < len(attempt.job.members) / 2 or (alive and len(silent) == 1)):
        text = f"the others timed out waiting; {named(silent)} reported no error and was still there: it hangs"
        yield Hypothesis(
            "rank_hung",
            text,
            waits[:2] + [e for e in attempt.exits.values() if e.rank in silent][:2],
            "likely" if len(silent) == 1 else "possible",
            only_rank(silent),
            host_of(e for e in attempt.job.events if e.rank in silent),
        )
    elif not silent and (different := _other_calls(attempt)):
        yield different
    else:
        where = f" in `{op}`" if (op := waits[0].word("op")) else ""
        text = f"{named(ranks_of(waits))} waited in vain for a peer{where}; which one is not in these logs"
        yield undecided("timeout_undecidable", text, waits[:3])


def _silent(attempt: Attempt) -> set[int]:
    """The ranks that reported nothing until they were ended; if one of them ignored the signal to end, it alone."""
    failed = {rank for rank, e in attempt.exits.items() if (e.number("code") or 0) not in (-15, -9)}
    silent = attempt.job.members - attempt.in_trouble - failed
    forced = silent & {*ranks_of(attempt.of("closed", what="forced"))}
    return forced if len(forced) == 1 else silent


def _other_calls(attempt: Attempt) -> Hypothesis | None:
    """All ranks wait, but their tracebacks show different collectives."""
    waits = [e for e in attempt.of("wait", "victim") if e.rank is not None and e.word("collective")]
    values = {e.rank: e.word("collective") or "" for e in waits if e.rank is not None}
    if len({*values.values()}) < 2 or {*values} != attempt.job.members:
        return None
    text = "; ".join(f"rank {rank} in {value}" for rank, value in sorted(values.items())[:6])
    outliers = minority(values) if len(values) > 2 else ()
    text = f"all ranks wait, but in different collectives: {text}"
    return at_events("collective_mismatch", text, waits, ranks=only_rank(outliers))


def stalled_tensors(attempt: Attempt) -> Iterator[Hypothesis]:
    """Ranks that are missing for every tensor are behind; if they differ by tensor, the ranks took different paths.

    A warning after which the work went on does not count: that tensor was only late.
    """
    tensors = [e for e in _stalls(attempt) if e.word("op")]
    if not tensors:
        return
    missing: dict[str, set[int]] = {}
    ready: dict[str, set[int]] = {}
    for event in tensors:
        for reported, of in (("missing", missing), ("ready", ready)):
            of.setdefault(event.word("op") or "", set()).update(map(int, _NUMBER.findall(event.word(reported) or "")))
    reporting = set[int]().union(*ready.values())
    reporting |= attempt.job.members | set(range(max(reporting, default=-1) + 1))  # ranks are numbered without a gap
    for op, arrived in ready.items():
        if arrived:
            missing.setdefault(op, set()).update(reporting - arrived)
    sets = {frozenset(absent) for absent in missing.values() if absent}
    if len(sets) == 1:
        ranks = tuple(sorted(sets.pop()))
        text = f"{named(ranks)} did not submit the tensors that the others wait for"
        yield Hypothesis("rank_behind", text, tensors[:4], ranks=ranks)
    elif sets:
        text = "; ".join(f"{named(absent)} not {op}" for op, absent in list(missing.items())[:3] if absent)
        yield Hypothesis("collective_mismatch", f"the ranks submit different tensors: {text}", tensors[:4])
    else:
        text = "some ranks wait for tensors that others did not submit; which ones is not in this text"
        yield undecided("timeout_undecidable", text, tensors[:3])


def stalls_without_tensors(attempt: Attempt) -> Iterator[Hypothesis]:
    """A warning of a stall whose list is not in the text, if nothing else tells more."""
    if stalls := [e for e in _stalls(attempt) if not e.word("op")]:
        yield undecided("timeout_undecidable", "some ranks wait for others; which ones is not in this text", stalls[:3])


def _stalls(attempt: Attempt) -> list[Event]:
    return [e for e in attempt.of("wait", what="stalled_tensor") if not attempt.job.worked_after(e)]
