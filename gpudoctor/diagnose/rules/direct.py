"""Lines that name a cause directly: exceptions, CUDA, NCCL, shared memory, files, ports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

import msgspec

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.job import Job
from gpudoctor.diagnose.rules.model import Hypothesis, address_of, gpu_of, host_of, named, ranks_of

_OUTSIDE = {
    "host_oom",
    "gpu_xid",
    "gpu_lost",
    "gpu_ecc",
    "collective_mismatch",
    "barrier_failed",
    "config_mismatch",
    "process_died_unknown",
    "heartbeat_lost",
    "node_lost",
    "rank_behind",
}
_STEPS_BEHIND = 3
_LAST_ERROR_LINES = 4
_HANDLE = re.compile(r"(?i)cublas|cudnn")
_NUMBER = re.compile(r"\d+")
_ALL = {"user_exception": "user_exception_all"}


def direct_causes(job: Job, attempt: int) -> list[Hypothesis]:
    """Each kind of cause that some line names, the most decisive first, then in order of appearance.

    If several ranks have the same cause, none of them is named.
    """
    events = [e for e in job.of("cause", attempt=attempt) if e.what not in _OUTSIDE and e.strength >= 2]
    if any(e.what == "shm_too_small_loader" for e in events):  # the workers died of it
        events = [e for e in events if e.what != "loader_worker_killed"]
    return _grouped(job, attempt, _deduplicated([e for e in events if not _survived(job, attempt, e, events)]))


def _survived(job: Job, attempt: int, event: Event, causes: list[Event]) -> bool:
    """Whether the job handled this cause and went on until another one came.

    A few steps after it prove nothing: a process prints what it had buffered when it ends.
    """
    later = [e.line for e in causes if e.file == event.file and e.line > event.line and _kind(e) != _kind(event)]
    if not later:
        return False
    steps = [e for e in job.of("progress", attempt=attempt) if e.file == event.file]
    between = [e.number("step") or 0 for e in steps if event.line < e.line < max(later)]
    before = [e.number("step") or 0 for e in steps if e.line < event.line]
    return len(between) >= _STEPS_BEHIND and max(between) > max(before, default=0)


def echoes(job: Job, attempt: int, least: int) -> list[Hypothesis]:
    """Causes that may also follow from a peer's end: a refused connection, an unanswered request."""
    events = [e for e in job.of("echo", attempt=attempt) if e.strength >= least]
    if any("the rendezvous" in e.text for e in job.of("victim", attempt=attempt, what="store_lost")):
        # the agent had been in the rendezvous: its host went away, and the address is right
        events = [e for e in events if e.what != "rendezvous_unreachable"]
    found = _grouped(job, attempt, events)
    for hypothesis in found:
        if hypothesis.what == "connect_stale" and attempt == 0:  # no earlier attempt could have left an address
            hypothesis.what = "bootstrap_connect_failed"
        hypothesis.unknown = hypothesis.what == "connect_stale" or all(
            e.detail.get("warning") for e in hypothesis.events
        )
        hypothesis.confidence = "likely" if least > 1 else "possible"
    return found


def weak_causes(job: Job, attempt: int) -> list[Hypothesis]:
    """Lines that name only what failed in general: wrappers of an error that is not in the text."""
    lost = job.of("victim", attempt=attempt, what="peer_lost")
    events = [
        e
        for e in job.of("cause", "wrapper", attempt=attempt)
        if e.strength == 1 and e.what.startswith("nccl_") and not _told_below(e, lost) and not job.outlived(e)
    ]
    events += [
        e
        for e in job.of("cause", attempt=attempt)
        if e.strength == 1 and not e.what.startswith("nccl_") and e.what not in _OUTSIDE
    ]
    found = _grouped(job, attempt, _without_memory(job, attempt, events))
    for hypothesis in found:
        hypothesis.confidence = "possible"
        hypothesis.unknown = hypothesis.what in ("nccl_unknown", "nccl_cuda_unknown", "accelerator_error")
    return found


def _without_memory(job: Job, attempt: int, events: list[Event]) -> list[Event]:
    """The events; if an allocator reported a full GPU, it explains why cuBLAS or cuDNN could not start there."""
    full = [e for e in job.of("echo", attempt=attempt) if e.what == "cuda_oom" and e.detail.get("warning")]
    starts = [e for e in events if e.what == "cuda_init_failed" and _HANDLE.search(e.text)] if full else []
    if not starts:
        return events
    explained = [msgspec.structs.replace(e, what="cuda_oom", strength=1) for e in (*full[:2], *starts)]
    return [*(e for e in events if e not in starts), *explained]


def _told_below(event: Event, lost: list[Event]) -> bool:
    """Whether the "Last error:" of this wrapper is a lost peer."""
    return any(
        e.file == event.file and e.rank == event.rank and event.line < e.line <= event.line + _LAST_ERROR_LINES
        for e in lost
    )


def mismatches(job: Job, attempt: int) -> list[Hypothesis]:
    """Reports of torch that ranks do different things; the minority in all reports is named, if there is one."""
    found: list[Hypothesis] = []
    for what, value_of in (("collective_mismatch", _running), ("config_mismatch", _parameters)):
        events = job.of("cause", attempt=attempt, what=what)
        if not events:
            continue
        values: dict[int, str] = {}
        for event in events:
            values.update(value_of(event))
        if not values and what == "collective_mismatch":  # gloo reports only that sizes differ
            found.append(Hypothesis(what, events[0].text.strip(), events, host=host_of(events)))
            continue
        outlier = minority(values)
        usual = next((value for rank, value in values.items() if rank not in outlier), "")
        text = (
            f"{named(outlier)} differs: {values[outlier[0]]}, the others {usual}"
            if outlier
            else "the ranks took different paths"
        )
        found.append(Hypothesis(what, text, events, ranks=outlier, host=host_of(events), confidence="certain"))
    barrier = job.of("cause", attempt=attempt, what="barrier_failed")
    if barrier:
        reported = barrier[0].word("ranks") or barrier[0].word("more") or ""
        ranks = tuple(sorted({int(number) for number in _NUMBER.findall(reported)}))
        text = f"{named(ranks) if ranks else 'a rank'} did not come to the barrier"
        found.append(Hypothesis("rank_hung", text, barrier, ranks=ranks, host=host_of(barrier), confidence="certain"))
    return found


def minority(values: dict[int, str]) -> tuple[int, ...]:
    """The ranks whose value differs from that of the majority; empty if no value has a majority.

    >>> minority({0: "a", 1: "a", 2: "b"}), minority({0: "a", 1: "b"})
    ((2,), ())
    """
    counts = Counter(values.values())
    if len(counts) < 2:
        return ()
    (most, times), *rest = counts.most_common()
    others = sum(count for _, count in rest)
    return tuple(sorted(rank for rank, value in values.items() if value != most)) if times > others else ()


def mismatch_at(seq: int, values: dict[int, str], events: Collection[Event] = ()) -> Hypothesis:
    """What each rank runs at one number of a process group; the minority is named, if three ranks or more are known."""
    text = "; ".join(f"rank {rank} {value}" for rank, value in sorted(values.items())[:6])
    text = f"at number {seq} of one group the ranks run different collectives: {text}"
    ranks = minority(values) if len(values) > 2 else ()
    return Hypothesis("collective_mismatch", text, [*events][:4], ranks=ranks, confidence="certain")


def _running(event: Event) -> dict[int, str]:
    reported = event.detail
    found: dict[int, str] = {}
    for side in ("a", "b"):
        if reported.get(side) is not None and reported.get(f"{side}_op"):
            found[int(reported[side])] = f"{reported[f'{side}_op']} {reported.get(f'{side}_shape', '')}".strip()
    return found


def _parameters(event: Event) -> dict[int, str]:
    reported = event.detail
    return {
        int(reported[side]): f"{reported[f'{side}_params']} parameters"
        for side in ("a", "b")
        if reported.get(side) is not None and reported.get(f"{side}_params") is not None
    }


def _deduplicated(events: list[Event]) -> list[Event]:
    """The events without a driver's or controller's copies of a rank's exception."""
    ranked = {(e.what, e.word("type"), e.word("message")) for e in events if e.rank is not None and e.word("type")}
    return [e for e in events if e.rank is not None or (e.what, e.word("type"), e.word("message")) not in ranked]


def _grouped(job: Job, attempt: int, events: list[Event]) -> list[Hypothesis]:
    groups: dict[object, list[Event]] = {}
    for event in events:
        groups.setdefault(_kind(event), []).append(event)
    made = [_hypothesis(job, attempt, group) for group in groups.values()]
    made.sort(key=lambda h: (-max(e.strength for e in h.events), min((e.file, e.line) for e in h.events)))
    return made


def _kind(event: Event) -> object:
    if event.what in ("user_exception", "import_error"):
        return event.what, event.word("type"), _NUMBER.sub("0", event.word("message") or "")[:80]
    return event.what


def _hypothesis(job: Job, attempt: int, events: list[Event]) -> Hypothesis:
    what = events[0].what
    strongest = max(e.strength for e in events)
    decisive = [e for e in events if e.strength == strongest]
    ranks = ranks_of(events)
    guilty = _listed_ranks(job, attempt)
    if guilty & set(ranks):
        ranks = tuple(sorted(guilty | set(ranks)))
    if what in _ALL and _is_on_all(job, attempt, ranks, decisive):
        what = _ALL[what]
    if not all(e.names_rank for e in decisive) or len(ranks) > 1 or _others_cut_off(job, attempt, ranks):
        ranks = ()
    return Hypothesis(
        what,
        _words(decisive[0]),
        _shown(job, what, decisive),
        ranks=ranks,
        host=host_of(decisive) or address_of(decisive),
        gpu=gpu_of(decisive),
        confidence="certain" if strongest >= 3 else "likely",
    )


def _is_on_all(job: Job, attempt: int, ranks: tuple[int, ...], decisive: list[Event]) -> bool:
    """Whether all ranks raised it: most of those that are heard of, or as many nameless copies as ranks that exited."""
    lost = {e.rank for e in job.of("victim", "wait", attempt=attempt)} - set(ranks) - {None}
    if len(ranks) > 1 and (not lost or set(ranks) >= job.ranks_heard() or len(ranks) > len(lost)):
        return True
    writers = {(e.rank, e.pid, e.host) for e in decisive}
    if ranks or len(decisive) < 2 or lost or len(writers) > 1:
        return False
    exits = [e for e in job.exits(attempt).values() if e.number("code") == 1]
    return len(exits) > 1 and sum(bool(e.detail.get("traceback")) for e in decisive) >= len(exits)


def _shown(job: Job, what: str, decisive: list[Event]) -> list[Event]:
    """The first lines, then those of other ranks; of a failed connection also the interface that was used."""
    first = decisive[:3]
    shown = first + [e for e in decisive[3:] if e.rank not in {d.rank for d in first}][:3]
    if what == "bootstrap_connect_failed":
        speakers = {(e.file, e.pid) for e in decisive}
        shown += [e for e in job.events if e.what == "interface" and (e.file, e.pid) in speakers][:2]
    return shown


def _others_cut_off(job: Job, attempt: int, ranks: tuple[int, ...]) -> bool:
    """Whether the head is missing and another rank failed by itself, whose error may have been there."""
    reported = job.ranks_in_trouble(attempt) | set(ranks)
    return job.head_missing() and any(
        e.number("code") == 1 and rank not in reported for rank, e in job.exits(attempt).items()
    )


def _listed_ranks(job: Job, attempt: int) -> set[int]:
    """The ranks that a distributed checkpoint lists as failed."""
    listed = [e for e in job.of("wrapper", attempt=attempt) if e.word("type") == "CheckpointException"]
    return {int(number) for e in listed for number in _NUMBER.findall(e.word("ranks") or "")}


def _words(event: Event) -> str:
    message, name, frame = event.word("message"), event.word("type"), event.word("frame")
    raised = event.word("raised_text") or ""
    if name and not message and raised.startswith("assert "):
        message = raised
    reported = f"{name}: {message}" if name and message else name or event.text
    return f"{reported} (raised from {frame})" if frame else reported
