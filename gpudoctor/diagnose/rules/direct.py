"""Lines that name a cause directly: exceptions, CUDA, NCCL, shared memory, files, ports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator

import msgspec

from gpudoctor.diagnose.events import Event, only
from gpudoctor.diagnose.job import Attempt
from gpudoctor.diagnose.rules.model import Hypothesis, host_of, named, ranks_of, words_of
from gpudoctor.text.grouped import grouped

# other rules know more of them
_OUTSIDE = {
    *("host_oom", "gpu_xid", "gpu_lost", "gpu_ecc", "collective_mismatch", "barrier_failed", "config_mismatch"),
    *("process_died_unknown", "heartbeat_lost", "node_lost", "rank_behind"),
}
_STEPS_BEHIND = 3
_LAST_ERROR_LINES = 4
_HANDLE = re.compile(r"(?i)cublas|cudnn")
_NUMBER = re.compile(r"\d+")


def direct_causes(attempt: Attempt) -> Iterator[Hypothesis]:
    """Each kind of cause that some line names, the most decisive first, then in order of appearance.

    If several ranks have the same cause, none of them is named.
    """
    events = [e for e in attempt.of("cause") if e.what not in _OUTSIDE and e.strength >= 2]
    if any(e.what == "shm_too_small_loader" for e in events):  # the workers died of it
        events = [e for e in events if e.what != "loader_worker_killed"]
    survived = _survived(attempt, events)
    events = [e for e in events if (e.file, e.line) not in survived]
    # a driver or controller copies a rank's exception
    ranked = {(e.what, e.word("type"), e.word("message")) for e in events if e.rank is not None and e.word("type")}
    yield from _grouped(
        attempt,
        [e for e in events if e.rank is not None or (e.what, e.word("type"), e.word("message")) not in ranked],
    )


def _survived(attempt: Attempt, causes: list[Event]) -> set[tuple[int, int]]:
    """File and line of each cause that the job handled, and went on until another one came.

    A few steps after it prove nothing: a process prints what it had buffered when it ends.
    """
    steps = grouped((e.file, e) for e in attempt.of("progress"))
    kinds = [(e, kind_of_failure(e)) for e in causes if e.file in steps]
    last_of_kinds: dict[int, dict[object, int]] = {}  # of each file
    for event, kind in kinds:
        lines = last_of_kinds.setdefault(event.file, {})
        lines[kind] = max(event.line, lines.get(kind, 0))
    found: set[tuple[int, int]] = set()
    for event, kind in kinds:
        last = max((line for other, line in last_of_kinds[event.file].items() if other != kind), default=0)
        between = [e.number("step") or 0 for e in steps[event.file] if event.line < e.line < last]
        before = [e.number("step") or 0 for e in steps[event.file] if e.line < event.line]
        if len(between) >= _STEPS_BEHIND and max(between) > max(before, default=0):
            found.add((event.file, event.line))
    return found


def strong_echoes(attempt: Attempt) -> Iterator[Hypothesis]:
    """Causes that may also follow from a peer's end: a refused connection, an unanswered request."""
    return _echoes(attempt, 2)


def weak_echoes(attempt: Attempt) -> Iterator[Hypothesis]:
    """The same, of lines that mostly follow from another's end."""
    return _echoes(attempt, 1)


def _echoes(attempt: Attempt, least: int) -> Iterator[Hypothesis]:
    events = [e for e in attempt.of("echo") if e.strength >= least]
    if any("the rendezvous" in e.text for e in attempt.of("victim", what="store_lost")):
        # the agent had been in the rendezvous: its host went away, and the address is right
        events = [e for e in events if e.what != "rendezvous_unreachable"]
    for found in _grouped(attempt, events):
        if found.what == "connect_stale" and attempt.number == 0:  # no earlier attempt could have left an address
            found.what = "bootstrap_connect_failed"
        found.unknown = found.what == "connect_stale" or all(e.detail.get("warning") for e in found.events)
        found.confidence = "likely" if least > 1 else "possible"
        yield found


def weak_causes(attempt: Attempt) -> Iterator[Hypothesis]:
    """Lines that name only what failed in general: wrappers of an error that is not in the text."""
    weak = [e for e in attempt.of("cause", "wrapper") if e.strength == 1 and e.what not in _OUTSIDE]
    of_nccl = [e for e in weak if e.what.startswith("nccl_")]
    lost_peers = attempt.of("victim", what="peer_lost")
    events = [e for e in of_nccl if not _told_below(e, lost_peers) and not attempt.job.outlived(e)]
    events += [e for e in weak if e not in of_nccl and e.role == "cause"]
    for found in _grouped(attempt, _without_memory(attempt, events)):
        found.confidence = "possible"
        says_which = found.what == "nccl_cuda_unknown" and any(e.role == "cause" for e in found.events)
        if found.what == "nccl_unknown" and (last := _last_error(attempt, found.events)):
            found.what, found.text = "failed_saying", last.word("message") or ""
            found.events = [*found.events, last]
        found.unknown = not says_which and found.what in ("nccl_unknown", "nccl_cuda_unknown", "accelerator_error")
        yield found


def _without_memory(attempt: Attempt, events: list[Event]) -> list[Event]:
    """The events; if an allocator reported a full GPU, it explains why cuBLAS or cuDNN could not start there."""
    full = [e for e in attempt.of("echo", what="cuda_oom") if e.detail.get("warning")]
    starts = [e for e in events if e.what == "cuda_init_failed" and _HANDLE.search(e.text)] if full else []
    if not starts:
        return events
    explained = [msgspec.structs.replace(e, what="cuda_oom", strength=1) for e in (*full[:2], *starts)]
    return [*(e for e in events if e not in starts), *explained]


def _last_error(attempt: Attempt, events: list[Event]) -> Event | None:
    """What NCCL gives as its last error below these lines, in words that no table knows."""
    reported = [e for e in attempt.of("said") if e.detail.get("by") == "last_error"]
    return next((last for last in reported if any(_told_below(e, [last]) for e in events)), None)


def _told_below(event: Event, lost: list[Event]) -> bool:
    """Whether the "Last error:" of this wrapper is one of these."""
    return any(
        e.file == event.file and e.rank == event.rank and event.line < e.line <= event.line + _LAST_ERROR_LINES
        for e in lost
    )


def mismatches(attempt: Attempt) -> Iterator[Hypothesis]:
    """Reports of torch that ranks do different things; the minority in all reports is named, if there is one."""
    for what in ("collective_mismatch", "config_mismatch"):
        events = attempt.of("cause", what=what)
        values = {rank: value for event in events for rank, value in _sides(event)}
        if events and not values and what == "collective_mismatch":  # gloo reports only that sizes differ
            yield Hypothesis(what, events[0].text.strip(), events, host=host_of(events))
        elif events:
            outliers = minority(values)
            usual = next((value for rank, value in values.items() if rank not in outliers), "")
            text = f"{named(outliers)} differs: {values[outliers[0]]}, the others {usual}" if outliers else ""
            text = text or "the ranks took different paths"
            yield Hypothesis(what, text, events, "certain", outliers, host_of(events))
    if barrier := attempt.of("cause", what="barrier_failed"):
        reported = barrier[0].word("ranks") or barrier[0].word("more") or ""
        ranks = tuple(sorted({int(number) for number in _NUMBER.findall(reported)}))
        yield Hypothesis(
            "rank_hung", f"{named(ranks)} did not come to the barrier", barrier, "certain", ranks, host_of(barrier)
        )


def minority(values: dict[int, str]) -> tuple[int, ...]:
    """The ranks whose value differs from that of the majority; empty if no value has a majority.

    >>> minority({0: "a", 1: "a", 2: "b"}), minority({0: "a", 1: "b"})
    ((2,), ())
    """
    most, times = Counter(values.values()).most_common(1)[0] if values else ("", 0)
    outliers = tuple(sorted(rank for rank, value in values.items() if value != most))
    return outliers if times > len(outliers) else ()


def mismatch_at(seq: int, values: dict[int, str], events: Collection[Event] = ()) -> Hypothesis:
    """What each rank runs at one number of a process group; the minority is named, if three ranks or more are known."""
    text = "; ".join(f"rank {rank} {value}" for rank, value in sorted(values.items())[:6])
    text = f"at number {seq} of one group the ranks run different collectives: {text}"
    ranks = minority(values) if len(values) > 2 else ()
    return Hypothesis("collective_mismatch", text, [*events][:4], ranks=ranks, confidence="certain")


def _sides(event: Event) -> Iterator[tuple[int, str]]:
    """The two ranks that a report compares, and what each of them runs or has."""
    detail = event.detail
    for side in ("a", "b"):
        if detail.get(side) is not None and detail.get(f"{side}_op"):
            yield int(detail[side]), f"{detail[f'{side}_op']} {detail.get(f'{side}_shape', '')}".strip()
        elif detail.get(side) is not None and detail.get(f"{side}_params") is not None:
            yield int(detail[side]), f"{detail[f'{side}_params']} parameters"


def _grouped(attempt: Attempt, events: list[Event]) -> list[Hypothesis]:
    made = [_hypothesis(attempt, group) for group in grouped((kind_of_failure(e), e) for e in events).values()]
    return sorted(made, key=lambda h: (-max(e.strength for e in h.events), min((e.file, e.line) for e in h.events)))


def kind_of_failure(event: Event) -> object:
    """Equal for lines that tell of the same kind of failure: exceptions also by their words."""
    if event.what in ("user_exception", "import_error"):
        return event.what, event.word("type"), _NUMBER.sub("0", event.word("message") or "")[:80]
    return event.what


def _hypothesis(attempt: Attempt, events: list[Event]) -> Hypothesis:
    what = events[0].what
    strongest = max(e.strength for e in events)
    decisive = [e for e in events if e.strength == strongest]
    ranks = ranks_of(events)
    guilty = _listed_ranks(attempt)
    if guilty & {*ranks}:
        ranks = tuple(sorted(guilty | {*ranks}))
    if what == "user_exception" and _is_on_all(attempt, ranks, decisive):
        what = "user_exception_all"
    if not all(e.names_rank for e in decisive) or len(ranks) > 1 or _others_cut_off(attempt, ranks):
        ranks = ()
    return Hypothesis(
        what,
        _words(decisive[0]),
        _shown(attempt, what, decisive),
        "certain" if strongest >= 3 else "likely",
        ranks,
        host_of(decisive),
        _gpu_of(decisive),
    )


def _is_on_all(attempt: Attempt, ranks: tuple[int, ...], decisive: list[Event]) -> bool:
    """Whether all ranks raised it: most of those that are heard of, or as many nameless copies as ranks that exited."""
    lost = {e.rank for e in attempt.of("victim", "wait")} - {*ranks, None}
    if len(ranks) > 1 and (not lost or {*ranks} >= attempt.job.ranks_heard() or len(ranks) > len(lost)):
        return True
    writers = {(e.rank, e.pid, e.host) for e in decisive}
    if ranks or len(decisive) < 2 or lost or len(writers) > 1:
        return False
    exits = [e for e in attempt.exits.values() if e.number("code") == 1]
    return len(exits) > 1 and sum(bool(e.detail.get("traceback")) for e in decisive) >= len(exits)


def _shown(attempt: Attempt, what: str, decisive: list[Event]) -> list[Event]:
    """The first lines, then those of other ranks; of a failed connection also the interface that was used."""
    first = decisive[:3]
    shown = first + [e for e in decisive[3:] if e.rank not in {d.rank for d in first}][:3]
    if what == "bootstrap_connect_failed":
        speakers = {(e.file, e.pid) for e in decisive}
        shown += [e for e in attempt.job.events if e.what == "interface" and (e.file, e.pid) in speakers][:2]
    return shown


def _others_cut_off(attempt: Attempt, ranks: tuple[int, ...]) -> bool:
    """Whether the head is missing and another rank failed by itself, whose error may have been there."""
    reported = attempt.in_trouble | {*ranks}
    return attempt.job.head_missing() and any(
        e.number("code") == 1 and rank not in reported for rank, e in attempt.exits.items()
    )


def _listed_ranks(attempt: Attempt) -> set[int]:
    """The ranks that a distributed checkpoint lists as failed."""
    listed = [e for e in attempt.of("wrapper") if e.word("type") == "CheckpointException"]
    return {int(number) for e in listed for number in _NUMBER.findall(e.word("ranks") or "")}


def _gpu_of(events: Collection[Event]) -> str | None:
    """The common GPU of the events, if there is exactly one; a bus id rather than an index, which needs one host."""
    found = [e for e in events if e.gpu]
    gpu = only(e.gpu for e in found)
    if gpu is None or len({e.host for e in found}) != 1:
        return None
    return only(bus for e in found if (bus := e.word("gpu_bus_id"))) or gpu


def _words(event: Event) -> str:
    frame, raised = event.word("frame"), event.word("raised_text") or ""
    bare = event.word("type") and not event.word("message") and raised.startswith("assert ")
    reported = f"{event.word('type')}: {raised}" if bare else words_of(event)
    return f"{reported} (raised from {frame})" if frame else reported
