"""Which ranks wait for which, according to flight recorder dumps and stacks."""

from __future__ import annotations

from collections import Counter

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.flight_recorder import Dump, RecordedCollective
from gpudoctor.diagnose.rules.direct import mismatch_at
from gpudoctor.diagnose.rules.model import Hypothesis, named, only_rank
from gpudoctor.diagnose.stacks import Stack

Group = tuple[str, tuple[int, ...]]
Stacks = dict[str, tuple[int | None, Stack]]  # of each process, by what to call it, with its rank


def from_dumps(dumps: list[Dump]) -> list[Hypothesis]:
    """Ranks that others wait for and that wait for none; else ranks that run another collective at the same number.

    Edge r -> m: r has an unfinished collective in a group whose member m has not enqueued it. Sends and receives are
    used only if collectives give no edge, since neighbours in a pipeline always wait for each other.
    """
    by_rank = {dump.rank: dump for dump in dumps}
    if len(by_rank) < 2:
        return []
    edges, shown = _edges(by_rank, p2p=False)
    if not edges:
        edges, shown = _edges(by_rank, p2p=True)
    waited_for = {m for members in edges.values() for m in members}
    culprits = sorted(m for m in waited_for if not edges.get(m))
    if culprits:
        entry = shown[culprits[0]]
        text = f"{named(culprits)} never enqueued {entry.name} number {entry.seq} of group {entry.group_name}"
        text += ", in which the others wait"
        missing = [rank for rank in culprits if rank not in by_rank]
        if missing:
            text += f"; {named(missing)} left no dump"
        return [Hypothesis("rank_behind", text, ranks=tuple(culprits), confidence="certain")]
    return _different(by_rank)


def _edges(dumps: dict[int, Dump], *, p2p: bool) -> tuple[dict[int, set[int]], dict[int, RecordedCollective]]:
    edges: dict[int, set[int]] = {}
    shown: dict[int, RecordedCollective] = {}
    enqueued = _enqueued(dumps, p2p=p2p)
    for rank, dump in dumps.items():
        waiting: dict[Group, RecordedCollective] = {}
        for entry in dump.entries:
            if entry.finished or entry.p2p is not p2p:
                continue
            if entry.group not in waiting or entry.seq > waiting[entry.group].seq:
                waiting[entry.group] = entry
        for group, entry in waiting.items():
            for member in entry.group[1]:
                groups = dumps[member].groups if member in dumps else {}
                if member == rank or (groups and group not in groups.items()):
                    continue
                if p2p and not entry.name.endswith((f"->{member}", f"<-{member}")):
                    continue
                has = enqueued.get((member, group), 0)
                if has < _oldest(dump, group, p2p, has):
                    edges.setdefault(rank, set()).add(member)
                    shown.setdefault(member, entry)
    return edges, shown


def _enqueued(dumps: dict[int, Dump], *, p2p: bool) -> dict[tuple[int, Group], int]:
    """The last operation that each rank enqueued in each group."""
    last: dict[tuple[int, Group], int] = {}
    for rank, dump in dumps.items():
        numbers = [(entry.group, entry.seq) for entry in dump.entries if entry.p2p is p2p]
        for group, status in dump.status.items() if not p2p else ():
            if status.enqueued is not None:
                numbers.append((group, status.enqueued))
        for group, seq in numbers:
            last[rank, group] = max(last.get((rank, group), 0), seq)
    return last


def _oldest(dump: Dump, group: Group, p2p: bool, has: int) -> int:
    """The first unfinished number that a member with `has` enqueued has not reached; 0 if there is none."""
    later = [e.seq for e in dump.entries if e.group == group and not e.finished and e.p2p is p2p and e.seq > has]
    return min(later, default=0)


def _different(dumps: dict[int, Dump]) -> list[Hypothesis]:
    at: dict[tuple[object, int], dict[int, str]] = {}
    for rank, dump in dumps.items():
        for entry in dump.entries:
            if not entry.finished and not entry.p2p:
                at.setdefault((entry.group, entry.seq), {})[rank] = f"{entry.name} {entry.sizes}"
    for (_, seq), values in sorted(at.items(), key=lambda item: item[0][1]):
        names = {value.split(" ")[0] for value in values.values()}
        uneven = any("all_to_all" in name or "gather" in name or "scatter" in name for name in names)
        if len(set(values.values())) < 2 or (uneven and len(names) < 2):
            continue
        return [mismatch_at(seq, values)]
    return []


def from_stacks(stacks: Stacks) -> list[Hypothesis]:
    """The process whose main thread is elsewhere while the others wait in a collective.

    Of two, the one that waits in none, if the other does.
    """
    outliers = _outliers(stacks)
    if not outliers:
        return []
    ranks = [rank for rank, _ in (stacks[name] for name in outliers) if rank is not None]
    who = named(ranks) if len(ranks) == len(outliers) else ", ".join(outliers[:4])
    verb = "stand" if len(outliers) > 1 else "stands"
    shown = [*outliers[:3], *(name for name in stacks if name not in outliers)][:4]
    text = f"{who} {verb} in {stacks[outliers[0]][1].place} while the others wait in a collective"
    return [
        Hypothesis(
            "rank_hung",
            text,
            [_shown(*stacks[name]) for name in shown],
            ranks=tuple(ranks) if len(ranks) == len(outliers) else (),
            confidence="certain" if len(outliers) == 1 and len(stacks) > 2 else "likely",
        )
    ]


def _outliers(stacks: Stacks) -> list[str]:
    """The processes that wait in no collective; if none or most of them do, those that stand elsewhere than most."""
    outliers = [name for name, (_, stack) in stacks.items() if not stack.waits]
    if len(stacks) <= 2:
        return outliers if len(stacks) == 2 and len(outliers) == 1 else []
    if outliers and len(outliers) <= len(stacks) / 2:
        return outliers
    places = {name: " < ".join(stack.frames[:4]) for name, (_, stack) in stacks.items()}
    common = Counter(places.values()).most_common(1)[0][0]
    outliers = [name for name, place in places.items() if place != common]
    return outliers if len(outliers) < len(stacks) / 2 else []


def undecided_stacks(stacks: Stacks) -> list[Hypothesis]:
    """Where the processes stand, if their stacks do not tell who waits for whom: one alone, or all alike."""
    if not stacks:
        return []
    text = "; ".join(f"{name} stands in {stack.place}" for name, (_, stack) in list(stacks.items())[:4])
    text = f"{text}; what it waits for is not in these stacks"
    return [
        Hypothesis(
            "stalled",
            text,
            [_shown(*each) for each in list(stacks.values())[:4]],
            ranks=only_rank([rank for rank, _ in stacks.values() if rank is not None]) if len(stacks) == 1 else (),
            confidence="possible",
            unknown=True,
        )
    ]


def _shown(rank: int | None, stack: Stack) -> Event:
    return Event(role="fact", what="stack", rank=rank, file=stack.file, line=stack.line, text=stack.place)
