"""Ends of processes that no line of theirs explains."""

from __future__ import annotations

from collections.abc import Iterable

from gpudoctor.diagnose.diagnosis import Confidence
from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.job import Job
from gpudoctor.diagnose.rules.model import Hypothesis, at_events, host_of, named, only_rank, ranks_of, undecided

_CLASS = {-9: "killed_sigkill", -11: "segfault", -7: "sigbus"}
_WHOLE_NODES = (4, 8, 16)
_CRASHES = (-11, -7, -9, -8, -4, -6, 1)
# torchrun's agent sends SIGTERM to all after the first failure, and SIGKILL 30 s later to those that are left
# (torch.distributed.elastic.multiprocessing, PContext.close); its table has whole seconds
_AGENT_KILLS_AFTER_S = 29.0


def unexplained_exits(job: Job, attempt: int) -> list[Hypothesis]:
    """Ranks that died of a signal, or exited with an error code without reporting an error: such a rank was first.

    -15 comes from the launcher, and so does -9 of its table if it came after the grace time. -6 follows from the
    watchdog if the rank reported a wait. A rank that reported a lost peer has explained its end.
    """
    exits = job.exits(attempt)
    closed = {(e.host, e.pid) for e in job.of("closed", attempt=attempt)}
    reported = job.ranks_in_trouble(attempt)
    nameless = [e for e in job.of("exit", attempt=attempt) if e.rank is None]
    outliers: dict[int, list[Event]] = {}
    for event in [*exits.values(), *nameless]:
        code = event.number("code") or 0
        if code in (0, -15, -1, -2, 143) or ((event.host, event.pid) in closed and event.pid is not None):
            continue
        if code == -9 and _killed_by_agent(event, exits.values()):
            continue
        if event.rank in reported and code in (1, -6):
            continue
        if event.rank is None and (code > 0 or (code == -6 and job.of("wait", "stuck", "cause", attempt=attempt))):
            continue
        outliers.setdefault(code if code < 0 else 1, []).append(event)
    codes = sorted(outliers, key=lambda code: _CRASHES.index(code) if code in _CRASHES else len(_CRASHES))
    return [found for code in codes if (found := _of_code(job, attempt, code, outliers[code]))]


def _killed_by_agent(event: Event, exits: Iterable[Event]) -> bool:
    """Whether the table shows a first failure, and this end at least the agent's grace time after it."""
    if event.detail.get("by") != "table" or event.time_s is None:
        return False
    first = [e.time_s for e in exits if e.number("root") and e is not event and e.time_s is not None]
    return any(event.time_s - time_s >= _AGENT_KILLS_AFTER_S for time_s in first)


def _of_code(job: Job, attempt: int, code: int, events: list[Event]) -> Hypothesis | None:
    ranks = ranks_of(events)
    one = only_rank(ranks)
    who = named(ranks) if ranks else "a process"
    first = [e for e in events if e.number("root")] or events
    if code == 1:
        return _silent(job, attempt, events, ranks)
    what = _CLASS.get(code, "process_died_unknown")
    others = {e.rank for e in job.of("victim", "wait", attempt=attempt)} - set(ranks) - {None}
    everyone = len(ranks) > 1 and not others
    # torchrun's agent names one of the processes that it found ended; the others are in the table below
    alone = {e.detail.get("by") for e in events} == {"agent"} and not others and not job.of("closed", attempt=attempt)
    ambiguous = (alone and (job.world or 0) > 1) or _others_gone(job, attempt, events)
    ambiguous = ambiguous or any(e.detail.get("cut") for e in events)
    if what == "segfault" and everyone:
        text = f"{who} died of SIGSEGV at the same time: a common cause in native code"
        return Hypothesis(
            "segfault_all",
            text,
            sorted(events, key=lambda e: not e.number("root"))[:3],
            host=host_of(events),
            confidence="certain",
        )
    text = {
        "killed_sigkill": f"{who} was killed by SIGKILL; by whom is not in these logs",
        "segfault": f"{who} crashed with SIGSEGV",
        "sigbus": f"{who} died of SIGBUS: nearly always /dev/shm too small, or a mapped file cut short",
        "process_died_unknown": f"{who} died of signal {-code}; why is not in these logs",
    }[what]
    confidence: Confidence = "certain" if one else "likely"
    return Hypothesis(
        what,
        text,
        first[:3],
        ranks=() if ambiguous else one,
        host=host_of(events),
        unknown=ambiguous,
        confidence="possible" if ambiguous else confidence,
    )


def _others_gone(job: Job, attempt: int, events: list[Event]) -> bool:
    """Whether the agent ended fewer processes than existed: the rest had died too, and it names only one of them.

    Workers start in the order of their ranks: `local_rank` of them started before the named one, and without a gap
    between process ids none is missing after it either. A table would list all that failed.
    """
    exits = job.of("exit", attempt=attempt)
    named_one = next((e for e in events if e.pid is not None and e.local_rank is not None), None)
    if named_one is None or {e.detail.get("by") for e in exits} != {"agent"}:
        return False
    pid, number = named_one.pid or 0, named_one.local_rank or 0
    pids = {e.pid for e in [*exits, *job.of("closed", attempt=attempt)] if e.pid is not None}
    before = {other for other in pids if other < pid}
    if len(pids) < 2 or len(before) > number:
        return False
    if len(pids) in _WHOLE_NODES and 2 * (max(pids) - min(pids) + 1) <= 3 * len(pids):
        return False  # a whole node's ranks: a gap between two ids is a process of another program
    in_a_row = pid - number <= min(pids)
    return len(before) < number or (in_a_row and len(pids) != max(pids) - (pid - number) + 1)


def _silent(job: Job, attempt: int, events: list[Event], ranks: tuple[int, ...]) -> Hypothesis | None:
    """Exit code 1 without an error is a finding only if the errors of others show that it would have been logged."""
    # the error of nobody may be theirs
    if ranks and any(e.rank is None and not e.detail.get("warning") for e in job.of("cause", attempt=attempt)):
        return None
    if ranks and not job.head_missing() and _would_have_spoken(job, attempt, events, ranks):
        text = f"{named(ranks)} left with an exit code but without a traceback: os._exit, sys.exit or a native exit"
        return at_events("silent_exit", text, events, ranks=only_rank(ranks))
    exits = job.of("exit", attempt=attempt)
    # a launcher that lists how each of its processes ended: the others were ended by it
    alone = len(ranks) == 1 and {e.word("by") for e in exits} == {"spawn"} and len({e.rank for e in exits}) > 1
    if alone and all(e.rank in ranks or e.number("code") == -15 for e in exits):
        text = f"{named(ranks)} exited with code {events[0].number('code')}; why is not in this text"
        return Hypothesis("launcher_table_only", text, events[:3], ranks=ranks, unknown=True)
    text = "the launcher's table has exit codes only: the errors of the ranks are not in this text"
    if {e.number("code") for e in exits} == {2}:
        text += "; code 2 is nearly always an argument that the program does not know"
    return undecided("launcher_table_only", text, events[:3], host=host_of(exits))


def _would_have_spoken(job: Job, attempt: int, events: list[Event], ranks: tuple[int, ...]) -> bool:
    """Whether a traceback of these ranks would be in the text: a file is theirs, or holds what ranks write."""
    own_files = {f.local_rank for f in job.files if f.attempt == attempt}
    own_files |= {f.rank for f in job.files if f.rank is not None}
    if any(e.rank in own_files or (e.local_rank is not None and e.local_rank in own_files) for e in events):
        return True
    files = {e.file for e in events}
    # the file begins with a traceback: the error may have come before that
    late = any(e.what == "begins_failing" and e.file in files for e in job.events)
    worked = any(e.file in files for e in job.of("progress", attempt=attempt))  # the file has the output of ranks
    return not late and (worked or bool(job.ranks_in_trouble(attempt) - set(ranks)))


def early_exit(job: Job, attempt: int) -> list[Hypothesis]:
    """A rank that neither failed nor was ended by the launcher exited by itself, with 0."""
    if not job.of("victim", "wait", attempt=attempt):
        return []
    stops = _early_stops(job, attempt)
    ended = next((ranks for missing in _MISSING if (ranks := missing(job, attempt))), ())
    in_trouble = job.ranks_in_trouble(attempt)
    if in_trouble.intersection(ended):  # who reports a wait or an error did not leave by itself
        ended = ()
    if not ended and not stops:
        return []
    speakers = tuple(rank for rank in ranks_of(stops) if rank not in in_trouble)
    ranks = ended or speakers
    if len(ranks) != 1 or (speakers and ended and speakers != ended):
        ranks = only_rank(speakers)
    shown = [e for e in stops if e.rank in ranks] or stops or job.of("exit", attempt=attempt, by="agent")
    who = named(ranks) if ranks else "one rank"
    text = f"{who} ended normally while the others still had work: uneven data or early stopping"
    shown = shown or job.of("exit", attempt=attempt)
    return [at_events("early_exit", text, shown, ranks=ranks, confidence="certain" if stops and ranks else "likely")]


def _early_stops(job: Job, attempt: int) -> list[Event]:
    return job.of("fact", attempt=attempt, what="early_stop")


def _all_but_one(job: Job, attempt: int) -> tuple[int, ...]:
    """The one rank that has no exit, if all others have one."""
    listed = {e.rank for e in job.of("exit", attempt=attempt) if e.rank is not None}
    world = job.world or len(job.members)
    return tuple(set(range(world)) - listed) if len(listed) == world - 1 else ()


def _not_ended_by_agent(job: Job, attempt: int) -> tuple[int, ...]:
    exits = job.of("exit", attempt=attempt)
    ended = {e.pid for e in job.of("closed", attempt=attempt) if e.pid is not None}
    failed = {e.pid for e in exits if e.pid is not None and e.number("code")}
    agent = job.of("exit", attempt=attempt, by="agent")
    if len(job.hosts) > 1 or not agent or not job.world or not ended or len(ended | failed) != job.world - 1:
        return ()
    return _all_but_one(job, attempt) or _left_over(job, attempt, sorted(ended | failed))


def _not_listed_by_srun(job: Job, attempt: int) -> tuple[int, ...]:
    return _all_but_one(job, attempt) if job.of("exit", attempt=attempt, by="srun") else ()


def _not_listed_after_stop(job: Job, attempt: int) -> tuple[int, ...]:
    table = any(e.number("root") for e in job.of("exit", attempt=attempt, by="table"))
    return _all_but_one(job, attempt) if table and _early_stops(job, attempt) else ()


def _not_in_table(job: Job, attempt: int) -> tuple[int, ...]:
    """The one rank that is neither in the table of failures nor ended by the agent: it exited with 0."""
    exits = job.of("exit", attempt=attempt, by="table")
    rows = [e for e in exits if e.rank is not None and e.local_rank is not None]
    shifts = {(e.rank or 0) - (e.local_rank or 0) for e in rows}
    ended_unlisted = {e.pid for e in job.of("closed", attempt=attempt)} - {e.pid for e in rows}
    if len(shifts) != 1 or ended_unlisted or any(e.detail.get("cut") for e in rows):
        return ()
    listed = {e.local_rank for e in rows if e.local_rank is not None}
    present = {f.local_rank for f in job.files if f.attempt == attempt and f.local_rank is not None} | listed
    missing = set(range(max(present) + 1)) - listed
    shift = next(iter(shifts))
    return tuple(number + shift for number in missing) if len(missing) == 1 else ()


def _left_over(job: Job, attempt: int, pids: list[int]) -> tuple[int, ...]:
    """The rank whose process id is missing: torchrun assigns them in order of ranks."""
    world = job.world or 0
    exits = job.of("exit", attempt=attempt)
    first = next((e.pid - e.local_rank for e in exits if e.pid and e.local_rank is not None), None)
    if first is None or pids[-1] - first >= world or pids[0] < first:
        return ()
    return tuple(n for n in range(world) if first + n not in pids)


# how a rank that left by itself shows, the surest first
_MISSING = (_not_ended_by_agent, _not_in_table, _not_listed_by_srun, _not_listed_after_stop)
