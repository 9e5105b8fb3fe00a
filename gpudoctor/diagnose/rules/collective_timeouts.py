"""Collectives that timed out: ranks that are behind, that never came, that run another one, or all at the same one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.diagnose.diagnosis import Confidence
from gpudoctor.diagnose.events import MOST_RANKS, Event, only
from gpudoctor.diagnose.job import Attempt
from gpudoctor.diagnose.rules.direct import mismatch_at
from gpudoctor.diagnose.rules.model import Hypothesis, at_events, host_of, named, only_rank, ranks_of, undecided
from gpudoctor.text.units import listed

_UNEVEN = ("ALLTOALL", "SEND", "RECV", "GATHER", "SCATTER", "COALESCED", "UNKNOWN")
_GROUP_OF_ALL = "0/"  # torch's first process group has every rank
_SHORT_MS = 10_000
_OVERHEARD = 0.1  # if fewer ranks than this share are heard of, nothing can be concluded about the others
Group = str | None


class Waiting(msgspec.Struct):
    """One rank in one process group: the collective it timed out in, and its counts."""

    rank: int
    seq: int | None = None
    op: str = ""
    numel: tuple[int | None, int | None] = (None, None)
    enqueued: int | None = None
    completed: int | None = None
    events: list[Event] = []

    def is_behind(self, latest: int, done: int) -> bool:
        """Whether it never enqueued the latest collective, or waits in one that others have completed."""
        if self.enqueued is not None and self.enqueued < latest:
            return True
        return self.seq is not None and self.seq <= done and self.seq < latest


Groups = dict[Group, dict[int, Waiting]]  # by process group and rank


def nccl_timeouts(attempt: Attempt) -> Iterator[Hypothesis]:
    """Hypotheses from the watchdog's sequence numbers, which are compared only inside one process group."""
    groups = _groups_of(attempt)
    found = _too_short(attempt) or [*_mismatched(groups), *_behind(groups)]
    if found:
        yield from found
    elif waiting := [w for members in groups.values() for w in members.values() if w.seq is not None]:
        yield _in_one_place(attempt, groups, waiting)


def _too_short(attempt: Attempt) -> list[Hypothesis]:
    """A time limit that a healthy collective may exceed, as while another rank still loads or compiles."""
    events = attempt.of("wait", what="nccl_timeout")
    limits = [e.number("timeout_ms") or _SHORT_MS for e in events]
    if not limits or max(limits) >= _SHORT_MS:
        return []
    text = f"the limit for a collective is {max(limits)} ms; torch's own is 10 minutes or more"
    return [at_events("timeout_too_short", text, events)]


def _groups_of(attempt: Attempt) -> Groups:
    """For each process group, the ranks that timed out or printed counts; key None: old formats without a group.

    A timeout whose line names no rank is there under a number below 0: somebody waits, and is never compared.
    """
    status = [e for e in attempt.of("wait", what="group_status") if e.rank is not None]
    only_group = only(_key(e) for e in status)
    group_of = {(e.rank, e.number("seq")): _key(e) for e in status}
    groups: Groups = {}
    for place, event in enumerate(attempt.of("wait", what="nccl_timeout")):
        rank = event.rank if event.rank is not None else -1 - place
        key = _key(event) or group_of.get((event.rank, event.number("seq"))) or only_group
        waiting = groups.setdefault(key, {}).setdefault(rank, Waiting(rank, events=[]))
        if waiting.seq is None or (event.number("seq") or 0) < waiting.seq:
            waiting.seq, waiting.op = event.number("seq"), event.word("op") or ""
            waiting.numel = (event.number("numel_in"), event.number("numel_out"))
        waiting.events.append(event)
    for event in status:
        waiting = groups.setdefault(_key(event), {}).setdefault(event.rank or 0, Waiting(event.rank or 0, events=[]))
        waiting.enqueued, waiting.completed = event.number("enqueued"), event.number("completed")
        if waiting.seq is None:
            waiting.seq = event.number("seq")
        waiting.events.append(event)
    return groups


def _key(event: Event) -> Group:
    guid, pg = event.word("guid"), event.number("pg")
    name = guid if guid is not None else pg
    return None if name is None else f"{name}/{event.word('desc') or ''}"


def _mismatched(groups: Groups) -> Iterator[Hypothesis]:
    """The same number in the same group, but another operation or size; the first such number."""
    at: dict[tuple[Group, int], dict[int, Waiting]] = {}
    for key, members in groups.items():
        for rank, waiting in members.items():
            if key is not None and rank >= 0 and waiting.seq is not None and waiting.op:
                at.setdefault((key, waiting.seq), {})[rank] = waiting
    for (_, seq), arrived in at.items():
        values = {rank: w.op for rank, w in arrived.items()}
        if len({*values.values()}) < 2:
            values = {rank: _operation(w) for rank, w in arrived.items() if w.numel[0] is not None}
        if len({*values.values()}) > 1:
            yield mismatch_at(seq, values, [w.events[0] for w in arrived.values()])
            return


def _behind(groups: Groups) -> Iterator[Hypothesis]:
    """A rank that never enqueued what others wait in, or waits in what others have completed; of one group."""
    for key, everyone in groups.items():
        members = [w for rank, w in everyone.items() if rank >= 0] if key is not None else []
        latest = max((w.seq for w in members if w.seq is not None), default=0)
        done = max((w.completed for w in members if w.completed is not None), default=0)
        behind = [w for w in members if w.is_behind(latest, done)]
        if 0 < len(behind) < len(members):
            yield _not_issued(latest, behind, [w for w in members if w not in behind])
            return


def _not_issued(latest: int, behind: list[Waiting], others: list[Waiting]) -> Hypothesis:
    """These ranks did not issue the collective number `latest`, in which the others wait."""
    ranks = tuple(sorted(w.rank for w in behind))
    events = [w.events[0] for w in behind] + [w.events[0] for w in others][:2]
    text = f"{named(ranks)} did not issue collective {latest}, in which the others wait"
    if passed := [f"{w.op} {w.seq}" for w in behind if w.op and w.seq is not None and w.seq < latest]:
        text += f"; it waits in {listed(passed, 2)} itself, or they run different ones from there on"
    return Hypothesis("rank_behind", text, events[:4], ranks=ranks, host=host_of(w.events[0] for w in behind))


def _in_one_place(attempt: Attempt, groups: Groups, waiting: list[Waiting]) -> Hypothesis:
    """What is known if no rank is behind: who says nothing, or that all wait in the same collective."""
    reporting = {w.rank for w in waiting}
    events = [w.events[0] for w in waiting]
    first = waiting[0]
    if _never_met(attempt, waiting):
        text = (
            "the very first collective never ended: these GPUs have never exchanged anything, or a rank that "
            "is not heard of never came"
        )
        return at_events("first_collective_hang", text, events)
    silent, size = _silent(attempt, waiting, reporting)
    unsaid = _below_the_highest(attempt, groups, reporting) if silent is None else silent
    if why := _not_comparable(groups, waiting, reporting):
        return _undecided(events, reporting, why)
    if len(unsaid) == 1 and (silent is not None or _may_hang(attempt, groups, unsaid)):
        text = f"all other ranks wait in number {first.seq}; {named(unsaid)} says nothing of it"
        return Hypothesis("rank_hung", text, events[:4], ranks=tuple(unsaid))
    if size and len(reporting) / size < _OVERHEARD:
        return _undecided(events, reporting, "most ranks are not heard of")
    place = f"{first.op.lower()} {first.seq}".lstrip()
    rest = f"; nothing of the wait is heard of {named(unsaid)}" if unsaid else ""
    text = (
        f"all ranks heard of wait in the same {place}: none of them is behind{rest}. A rank that is "
        "not in these logs never came, or the transfer itself stands still"
    )
    return Hypothesis("timeout_all_same_seq", text, events[:4], confidence="possible")


def _not_comparable(groups: Groups, waiting: list[Waiting], reporting: set[int]) -> str:
    """Why these waits do not show who is missing; empty if all are in one place."""
    places = {(key, w.seq) for key, members in groups.items() for w in members.values() if w.seq is not None}
    if len(reporting) < 2:
        return "one rank alone cannot show who is missing"
    # in named groups the operations and sizes have been compared before
    if not groups.keys() - {None}:
        kinds = dict.fromkeys(_operation(w) for w in waiting if w.op)
        if len(kinds) > 1:
            return (
                f"they wait in different ones ({listed([*kinds], 4)}): a mismatch, or of several groups; "
                "these lines name no group"
            )
    if len({w.seq for w in waiting}) > 1 or len(groups.keys() - {None}) > 1:
        return "the ranks wait in different groups" if len(places) > 1 else "most ranks are not heard of"
    return ""


def _operation(waiting: Waiting) -> str:
    """The operation, with its size if that is the same on all ranks of a group."""
    uneven = waiting.op.startswith(_UNEVEN) or "ALLTOALL" in waiting.op or waiting.numel[0] is None
    return waiting.op if uneven else f"{waiting.op} of {waiting.numel[0]}"


def _undecided(events: list[Event], reporting: set[int], why: str) -> Hypothesis:
    text = f"{named(rank for rank in reporting if rank >= 0)} waited in vain for a collective: {why}"
    return undecided("timeout_undecidable", text, events)


def _below_the_highest(attempt: Attempt, groups: Groups, reporting: set[int]) -> set[int]:
    """Ranks that say nothing of the wait though there are higher ones: ranks are numbered without gaps.

    Empty if the groups may be of some ranks only, if a wait without a rank may be theirs, or if most are missing: then
    the text is an excerpt.
    """
    if min(reporting) < 0 or not all(key is None or key.startswith(_GROUP_OF_ALL) for key in groups):
        return set()
    known_ranks = attempt.job.ranks_heard() | reporting
    unsaid = set(range(max(known_ranks) + 1)) - reporting - attempt.in_trouble
    return unsaid if len(unsaid) < len(reporting) else set()


def _may_hang(attempt: Attempt, groups: Groups, unsaid: set[int]) -> bool:
    """Whether these ranks came, are in the group that waits, as only its name tells, and did not report their end."""
    ended = {e.rank for e in attempt.of("done")}
    return None not in groups and unsaid <= attempt.job.ranks_heard() - ended


def _never_met(attempt: Attempt, waiting: list[Waiting]) -> bool:
    """Whether all wait in their first collective, or none has completed one, and no step was made."""
    if any(e.number("step") or e.number("within") for e in attempt.of("progress")):
        return False
    in_first = all(w.seq is not None and w.seq <= 1 for w in waiting)
    return in_first or all(w.completed is not None and w.completed <= 0 for w in waiting)


def _silent(attempt: Attempt, waiting: list[Waiting], reporting: set[int]) -> tuple[set[int] | None, int | None]:
    """The silent ranks, and the size of the group: the world size, or the ratio of an all-gather's sizes."""
    job, size = attempt.job, attempt.job.world
    for w in waiting:
        small, large = sorted((w.numel[0] or 0, w.numel[1] or 0))
        gathers = "REDUCE_SCATTER" in w.op or "ALLGATHER" in w.op.replace("_", "")
        if small and gathers and large % small == 0 and large // small <= MOST_RANKS:
            size = max(size or 0, large // small)
    ended = {e.rank for e in attempt.of("closed")}
    ended |= {r for r, e in attempt.exits.items() if e.number("code") in (-15, -9)}
    if size is None and ended & (job.ranks_heard() - reporting - attempt.in_trouble):
        size = len(job.members)  # some ranks that did not time out were alive until the launcher ended them
    if size is None or size <= max(reporting):
        return None, size
    silent = set(range(size)) - reporting - attempt.in_trouble
    return silent if min(reporting) >= 0 else set(), size  # a wait without a rank may be theirs


def watchdogs_stuck(attempt: Attempt) -> Iterator[Hypothesis]:
    """A watchdog that itself made no progress: a CUDA call or the GIL hangs in that process.

    With work outstanding the rank may just be waiting for a communicator that was never complete: then no rank is
    named, unless others have more outstanding.
    """
    nameless = attempt.of("stuck")
    events = [e for e in nameless if e.rank is not None]
    works: dict[int, int] = {}
    for event in events:
        count = event.number("works")
        if event.rank is not None and count is not None:
            works[event.rank] = min(count, works.get(event.rank, count))
    ranks = ranks_of(events)
    if len(ranks) == 1:
        ranks = () if works.get(ranks[0], 0) > 0 else ranks
    else:
        fewest = [rank for rank, count in works.items() if count == min(works.values())]
        ranks = only_rank(fewest) if len(works) == len(ranks) else ()
    if nameless:
        why = "a CUDA or NCCL call, or whoever holds the GIL, hangs there"
        text = f"the watchdog of {named(ranks)} made no progress: {why}"
        host = host_of(events) if ranks else None
        confidence: Confidence = "likely" if ranks else "possible"
        yield Hypothesis("watchdog_stuck", text, (events or nameless)[:3], confidence, ranks, host)
