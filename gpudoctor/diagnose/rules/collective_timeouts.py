"""Collectives that timed out: ranks that are behind, that never came, that run another one, or all at the same one."""

from __future__ import annotations

import msgspec

from gpudoctor.diagnose.events import MOST_RANKS, Event
from gpudoctor.diagnose.job import Job
from gpudoctor.diagnose.rules.direct import mismatch_at
from gpudoctor.diagnose.rules.model import Hypothesis, at_events, host_of, named, ranks_of, undecided

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


def nccl_timeouts(job: Job, attempt: int) -> list[Hypothesis]:
    """Hypotheses from the watchdog's sequence numbers, which are compared only inside one process group."""
    groups = groups_of(job, attempt)
    if not groups:
        return []
    if short := _too_short(job, attempt):
        return short
    found = [*_mismatched(groups), *_behind(groups)]
    if found:
        return found
    return _same_everywhere(job, attempt, groups)


def _too_short(job: Job, attempt: int) -> list[Hypothesis]:
    """A time limit that a healthy collective may exceed, as while another rank still loads or compiles."""
    events = job.of("wait", attempt=attempt, what="nccl_timeout")
    limits = [e.number("timeout_ms") for e in events]
    longest = max((limit for limit in limits if limit is not None), default=None)
    if longest is None or None in limits or longest >= _SHORT_MS:
        return []
    text = f"the limit for a collective is {longest} ms; torch's own is 10 minutes or more"
    return [at_events("timeout_too_short", text, events)]


def groups_of(job: Job, attempt: int) -> Groups:
    """For each process group, the ranks that timed out or printed counts; key None: old formats without a group.

    A timeout whose line names no rank is there under a number below 0: somebody waits, and is never compared.
    """
    status = [e for e in job.of("wait", attempt=attempt) if e.what == "group_status" and e.rank is not None]
    timeouts = job.of("wait", attempt=attempt, what="nccl_timeout")
    keys = {_key(e) for e in status}
    only = next(iter(keys)) if len(keys) == 1 else None
    group_of = {(e.rank, e.number("seq")): _key(e) for e in status}
    groups: Groups = {}
    for place, event in enumerate(timeouts):
        rank = event.rank if event.rank is not None else -1 - place
        key = _key(event) or group_of.get((event.rank, event.number("seq"))) or only
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
    guid, desc, pg = event.word("guid"), event.word("desc"), event.number("pg")
    if pg is None and guid is None:
        return None
    return f"{guid if guid is not None else pg}/{desc or ''}"


def _mismatched(groups: Groups) -> list[Hypothesis]:
    """The same number in the same group, but another operation or size."""
    for key, members in groups.items():
        if key is None:
            continue
        at: dict[int, dict[int, Waiting]] = {}
        for rank, waiting in members.items():
            if rank >= 0 and waiting.seq is not None and waiting.op:
                at.setdefault(waiting.seq, {})[rank] = waiting
        for seq, arrived in at.items():
            values = {rank: w.op for rank, w in arrived.items()}
            if len(set(values.values())) < 2 and not any(
                w.op.startswith(_UNEVEN) or "ALLTOALL" in w.op for w in arrived.values()
            ):
                values = {rank: f"{w.op} of {w.numel[0]}" for rank, w in arrived.items() if w.numel[0] is not None}
            if len(set(values.values())) < 2:
                continue
            return [mismatch_at(seq, values, [w.events[0] for w in arrived.values()])]
    return []


def _behind(groups: Groups) -> list[Hypothesis]:
    """A rank that never enqueued what others wait in, or waits in what others have completed."""
    for key, everyone in groups.items():
        members = {rank: w for rank, w in everyone.items() if rank >= 0}
        if key is None or len(members) < 2:
            continue
        latest = max((w.seq for w in members.values() if w.seq is not None), default=0)
        done = max((w.completed for w in members.values() if w.completed is not None), default=0)
        behind = [w for w in members.values() if w.is_behind(latest, done)]
        if behind and len(behind) < len(members):
            ranks = tuple(sorted(w.rank for w in behind))
            events = [w.events[0] for w in behind] + [w.events[0] for w in members.values() if w not in behind][:2]
            text = f"{named(ranks)} did not issue collective {latest}, in which the others wait"
            return [Hypothesis("rank_behind", text, events[:4], ranks=ranks, host=host_of(w.events[0] for w in behind))]
    return []


def _same_everywhere(job: Job, attempt: int, groups: Groups) -> list[Hypothesis]:
    waiting = _numbered(groups)
    if not waiting:
        return []
    reporting = {w.rank for w in waiting}
    events = [w.events[0] for w in waiting]
    first = waiting[0]
    silent, size = _silent(job, attempt, waiting, reporting)
    unsaid = _below_the_highest(job, attempt, groups, reporting) if silent is None else silent
    only = unsaid if len(unsaid) == 1 and (silent is not None or _may_hang(job, attempt, groups, unsaid)) else set()
    if _never_met(job, attempt, waiting):
        text = (
            "the very first collective never ended: these GPUs have never exchanged anything, or a rank that "
            "is not heard of never came"
        )
        return [at_events("first_collective_hang", text, events)]
    one_call = _is_one_call(groups, waiting)
    one_place = one_call and len({w.seq for w in waiting}) == 1 and len(groups.keys() - {None}) <= 1
    if one_place and only and len(reporting) >= 2:
        text = f"all other ranks wait in number {first.seq}; {named(only)} says nothing of it"
        return [Hypothesis("rank_hung", text, events[:4], ranks=tuple(only))]
    share = len(reporting) / size if size else 1.0
    if not one_place or len(reporting) < 2 or share < _OVERHEARD:
        return [_undecided(groups, events, reporting, one_call=one_call)]
    return [_all_in_one_place(first, events, unsaid)]


def _numbered(groups: Groups) -> list[Waiting]:
    """The ranks of all groups that said in which number they wait."""
    return [w for members in groups.values() for w in members.values() if w.seq is not None]


def _all_in_one_place(first: Waiting, events: list[Event], unsaid: set[int]) -> Hypothesis:
    place = f"{first.op.lower()} {first.seq}".lstrip()
    rest = f"; nothing of the wait is heard of {named(unsaid)}" if unsaid else ""
    text = (
        f"all ranks heard of wait in the same {place}: none of them is behind{rest}. A rank that is "
        "not in these logs never came, or the transfer itself stands still"
    )
    return Hypothesis("timeout_all_same_seq", text, events[:4], confidence="possible")


def _below_the_highest(job: Job, attempt: int, groups: Groups, reporting: set[int]) -> set[int]:
    """Ranks that say nothing of the wait though there are higher ones: ranks are numbered without gaps.

    Empty if the groups may be of some ranks only, if a wait without a rank may be theirs, or if most are missing: then
    the text is an excerpt.
    """
    if min(reporting) < 0 or not all(key is None or key.startswith(_GROUP_OF_ALL) for key in groups):
        return set()
    heard = job.ranks_heard() | reporting
    unsaid = set(range(max(heard) + 1)) - reporting - job.ranks_in_trouble(attempt)
    return unsaid if len(unsaid) < len(reporting) else set()


def _may_hang(job: Job, attempt: int, groups: Groups, unsaid: set[int]) -> bool:
    """Whether these ranks came, are in the group that waits, as only its name tells, and did not report their end."""
    ended = {e.rank for e in job.of("done", attempt=attempt)}
    return None not in groups and unsaid <= job.ranks_heard() - ended


def _is_one_call(groups: Groups, waiting: list[Waiting]) -> bool:
    """Whether none waits in another operation, as far as is known: in named groups they have been compared before."""
    return bool(groups.keys() - {None}) or len({w.op for w in waiting if w.op}) <= 1


def _undecided(groups: Groups, events: list[Event], reporting: set[int], *, one_call: bool) -> Hypothesis:
    places = {(key, w.seq) for key, members in groups.items() for w in members.values() if w.seq is not None}
    if len(reporting) < 2:
        why = "one rank alone cannot show who is missing"
    elif not one_call:
        why = "the ranks wait in different collectives, of one group or of several: these lines name no group"
    else:
        why = "the ranks wait in different groups" if len(places) > 1 else "most ranks are not heard of"
    ranks = [rank for rank in reporting if rank >= 0]
    text = f"{named(ranks) if ranks else 'a rank'} waited in vain for a collective: {why}"
    return undecided("timeout_undecidable", text, events)


def _never_met(job: Job, attempt: int, waiting: list[Waiting]) -> bool:
    """Whether all wait in their first collective, or none has completed one, and no step was made."""
    if any(e.number("step") or e.number("within") for e in job.of("progress", attempt=attempt)):
        return False
    in_first = all(w.seq is not None and w.seq <= 1 for w in waiting)
    return in_first or all(w.completed is not None and w.completed <= 0 for w in waiting)


def _silent(job: Job, attempt: int, waiting: list[Waiting], reporting: set[int]) -> tuple[set[int] | None, int | None]:
    """The silent ranks, and the size of the group: the world size, or the ratio of an all-gather's sizes."""
    size = job.world
    for w in waiting:
        small, large = sorted((w.numel[0] or 0, w.numel[1] or 0))
        gathers = "REDUCE_SCATTER" in w.op or "ALLGATHER" in w.op.replace("_", "")
        if small and gathers and large % small == 0 and large // small <= MOST_RANKS:
            size = max(size or 0, large // small)
    ended = {e.rank for e in job.of("closed", attempt=attempt)}
    ended |= {r for r, e in job.exits(attempt).items() if e.number("code") in (-15, -9)}
    if size is None and ended & (job.ranks_heard() - reporting - job.ranks_in_trouble(attempt)):
        size = len(job.members)  # some ranks that did not time out were alive until the launcher ended them
    if size is None or size <= max(reporting):
        return None, size
    silent = set(range(size)) - reporting - job.ranks_in_trouble(attempt)
    return silent if min(reporting) >= 0 else set(), size  # a wait without a rank may be theirs


def watchdogs_stuck(job: Job, attempt: int) -> list[Hypothesis]:
    """A watchdog that itself made no progress: a CUDA call or the GIL hangs in that process.

    With work outstanding the rank may just be waiting for a communicator that was never complete: then no rank is
    named, unless others have more outstanding.
    """
    events = [e for e in job.of("stuck", attempt=attempt) if e.rank is not None]
    if not events:
        nameless = job.of("stuck", attempt=attempt)
        return [_stuck((), nameless)] if nameless else []
    works: dict[int, int] = {}
    for event in events:
        count = event.number("works")
        if event.rank is not None and count is not None:
            works[event.rank] = min(count, works.get(event.rank, count))
    ranks = ranks_of(events)
    if len(ranks) == 1:
        return [_stuck(() if works.get(ranks[0], 0) > 0 else ranks, events)]
    fewest = [rank for rank in ranks if works.get(rank) is not None and works[rank] == min(works.values())]
    return [_stuck(tuple(fewest) if len(fewest) == 1 and len(works) == len(ranks) else (), events)]


def _stuck(ranks: tuple[int, ...], events: list[Event]) -> Hypothesis:
    who = named(ranks) if ranks else "a rank"
    text = f"the watchdog of {who} made no progress: a CUDA or NCCL call, or whoever holds the GIL, hangs there"
    return Hypothesis(
        "watchdog_stuck",
        text,
        events[:3],
        ranks=ranks,
        host=host_of(events) if ranks else None,
        confidence="likely" if ranks else "possible",
    )
