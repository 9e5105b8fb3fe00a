"""Which ranks wait for which, according to flight recorder dumps, stacks and NCCL's RAS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.flight_recorder import Dump, RecordedCollective
from gpudoctor.diagnose.job import Attempt
from gpudoctor.diagnose.rules.direct import mismatch_at
from gpudoctor.diagnose.rules.model import Hypothesis, at_events, named, only_rank, ranks_of, undecided
from gpudoctor.diagnose.stacks import Stack
from gpudoctor.text.grouped import grouped

Group = tuple[str, tuple[int, ...]]
Stacks = dict[str, tuple[int | None, Stack]]  # of each process, by what to call it, with its rank


def from_dumps(attempt: Attempt) -> Iterator[Hypothesis]:
    """Ranks that others wait for and that wait for none; else ranks that run another collective at the same number.

    Edge r -> m: r has an unfinished collective in a group whose member m has not enqueued it. Sends and receives are
    used only if collectives give no edge, since neighbours in a pipeline always wait for each other.
    """
    by_rank = {dump.rank: dump for dump in attempt.job.dumps}
    if len(by_rank) < 2:
        return
    edges, shown = _edges(by_rank, p2p=False)
    if not edges:
        edges, shown = _edges(by_rank, p2p=True)
    culprits = sorted({m for members in edges.values() for m in members} - edges.keys())
    if not culprits:
        yield from _different(by_rank)
        return
    entry = shown[culprits[0]]
    text = f"{named(culprits)} never enqueued {entry.name} number {entry.seq} of group {entry.group_name}"
    text += ", in which the others wait"
    if missing := [rank for rank in culprits if rank not in by_rank]:
        text += f"; {named(missing)} left no dump"
    yield Hypothesis("rank_behind", text, ranks=tuple(culprits), confidence="certain")


def _edges(dumps: dict[int, Dump], *, p2p: bool) -> tuple[dict[int, set[int]], dict[int, RecordedCollective]]:
    edges: dict[int, set[int]] = {}
    shown: dict[int, RecordedCollective] = {}
    enqueued = _enqueued(dumps, p2p=p2p)
    for rank, dump in dumps.items():
        unfinished = grouped((e.group, e) for e in dump.entries if not e.finished and e.p2p is p2p)
        for group, entries in unfinished.items():
            latest = max(entries, key=lambda e: e.seq)
            for member in group[1]:
                groups = dumps[member].groups if member in dumps else {}
                if member == rank or (groups and group not in groups.items()):
                    continue
                if p2p and not latest.name.endswith((f"->{member}", f"<-{member}")):
                    continue
                # it has not reached an unfinished number
                if any(e.seq > enqueued.get((member, group), 0) for e in entries):
                    edges.setdefault(rank, set()).add(member)
                    shown.setdefault(member, latest)
    return edges, shown


def _enqueued(dumps: dict[int, Dump], *, p2p: bool) -> dict[tuple[int, Group], int]:
    """The last operation that each rank enqueued in each group."""
    last: dict[tuple[int, Group], int] = {}
    for rank, dump in dumps.items():
        numbers = [(entry.group, entry.seq) for entry in dump.entries if entry.p2p is p2p]
        for group, seq in [*numbers, *(dump.enqueued.items() if not p2p else ())]:
            last[rank, group] = max(last.get((rank, group), 0), seq)
    return last


def _different(dumps: dict[int, Dump]) -> Iterator[Hypothesis]:
    at: dict[tuple[object, int], dict[int, str]] = {}
    for rank, dump in dumps.items():
        for entry in dump.entries:
            if not entry.finished and not entry.p2p:
                at.setdefault((entry.group, entry.seq), {})[rank] = f"{entry.name} {entry.sizes}"
    for (_, seq), values in sorted(at.items(), key=lambda item: item[0][1]):
        names = {value.split(" ")[0] for value in values.values()}
        uneven = any("all_to_all" in name or "gather" in name or "scatter" in name for name in names)
        if len({*values.values()}) > 1 and not (uneven and len(names) < 2):
            yield mismatch_at(seq, values)
            return


def ras_behind(attempt: Attempt) -> Iterator[Hypothesis]:
    """Ranks that launched fewer operations, as NCCL's RAS tells."""
    if events := attempt.of("cause", what="rank_behind"):
        text = "NCCL RAS: launched fewer operations than the other ranks of the communicator"
        yield at_events("rank_behind", text, events, ranks=ranks_of(events))


def from_stacks(attempt: Attempt) -> Iterator[Hypothesis]:
    """The process whose main thread is elsewhere while the others wait in a collective.

    Of two, the one that waits in none, if the other does.
    """
    stacks = _by_process(attempt)
    outliers = _outliers(stacks)
    if not outliers:
        return
    ranks = tuple(rank for rank, _ in (stacks[name] for name in outliers) if rank is not None)
    all_known = len(ranks) == len(outliers)
    who = named(ranks) if all_known else ", ".join(outliers[:4])
    verb = "stand" if len(outliers) > 1 else "stands"
    shown = [*outliers[:3], *(name for name in stacks if name not in outliers)][:4]
    yield Hypothesis(
        "rank_hung",
        f"{who} {verb} in {stacks[outliers[0]][1].place} while the others wait in a collective",
        [_shown(*stacks[name]) for name in shown],
        "certain" if len(outliers) == 1 and len(stacks) > 2 else "likely",
        ranks if all_known else (),
    )


def _by_process(attempt: Attempt) -> Stacks:
    """The stacks by what to call their process, with its rank if that is known; the last one of each counts."""
    found: Stacks = {}
    job = attempt.job
    pids = {e.pid: e.rank for e in job.events if e.pid is not None and e.rank is not None}
    for stack in job.stacks:
        rank = stack.rank if stack.rank is not None else job.files[stack.file].rank
        if rank is None and stack.pid is not None:
            rank = pids.get(stack.pid)
        place = f"process {stack.pid}" if stack.pid is not None else f"the process at line {stack.line}"
        found[f"rank {rank}" if rank is not None else place] = rank, stack
    return found


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


def undecided_stacks(attempt: Attempt) -> Iterator[Hypothesis]:
    """Where the processes stand, if their stacks do not tell who waits for whom: one alone, or all alike."""
    if stacks := _by_process(attempt):
        text = "; ".join(f"{name} stands in {stack.place}" for name, (_, stack) in list(stacks.items())[:4])
        text = f"{text}; what it waits for is not in these stacks"
        found = undecided("stalled", text, [_shown(*each) for each in stacks.values()])
        found.ranks = only_rank([rank for rank, _ in stacks.values() if rank is not None]) if len(stacks) == 1 else ()
        yield found


def _shown(rank: int | None, stack: Stack) -> Event:
    return Event(role="fact", what="stack", rank=rank, file=stack.file, line=stack.line, text=stack.place)
