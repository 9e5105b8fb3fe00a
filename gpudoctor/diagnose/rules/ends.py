"""Ends of processes that no line of theirs explains."""

from __future__ import annotations

from collections.abc import Iterator
from signal import SIGABRT, SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM, Signals

from gpudoctor.diagnose.diagnosis import Confidence
from gpudoctor.diagnose.events import Event, only
from gpudoctor.diagnose.job import Attempt, is_work
from gpudoctor.diagnose.rules.model import Hypothesis, at_events, host_of, named, only_rank, ranks_of, undecided
from gpudoctor.lazy import lazy_pattern
from gpudoctor.text.grouped import grouped

# of each signal: the word for it, and what is known
_DEATHS = {
    -SIGSEGV: ("segfault", "crashed with SIGSEGV"),
    -SIGBUS: ("sigbus", "died of SIGBUS: nearly always /dev/shm too small, or a mapped file cut short"),
    -SIGKILL: ("killed_sigkill", "was killed by SIGKILL; by whom is not in these logs"),
}
_NAMES = {each.value: each.name for each in Signals}
_WHOLE_NODES = (4, 8, 16)
_ERROR = 1  # stands for each exit code above 0: which one it is tells nothing
# whose end tells the most first; other signals after them
_WORST_FIRST = (-SIGSEGV, -SIGBUS, -SIGKILL, -SIGFPE, -SIGILL, -SIGABRT, _ERROR)
# codes of a process that ended well, or that a launcher ended after another one, a scheduler or a person
NO_FAILURE_OF_ITS_OWN = (0, -SIGTERM, -SIGHUP, -SIGINT)
# torchrun's agent sends SIGTERM to all after the first failure, and SIGKILL 30 s later to those that are left
# (torch.distributed.elastic.multiprocessing, PContext.close); its table has whole seconds
_AGENT_KILLS_AFTER_S = 29.0
_OTHER_LOG = lazy_pattern(r"(?i)\b(?:check|see|read|look (?:at|into)) (?:its|their|the) (?:own )?logs?\b")


def deaths(attempt: Attempt) -> Iterator[Hypothesis]:
    """Ranks that died of a signal without reporting an error: such a rank was first."""
    return (h for h in _unexplained(attempt) if not h.unknown and h.what != "silent_exit")


def silent_exits(attempt: Attempt) -> Iterator[Hypothesis]:
    """Ranks that left with an error code and without a word."""
    return (h for h in _unexplained(attempt) if h.what == "silent_exit")


def codes_alone(attempt: Attempt) -> Iterator[Hypothesis]:
    """Ends of which not even that much is known: who was first, or why."""
    return (h for h in _unexplained(attempt) if h.unknown)


def _unexplained(attempt: Attempt) -> Iterator[Hypothesis]:
    """The hypothesis of each code, crashes first."""
    exits = [*attempt.exits.values(), *(e for e in attempt.of("exit") if e.rank is None)]
    outliers = grouped((min(e.number("code") or 0, _ERROR), e) for e in exits if not _is_explained(attempt, e))
    order = {code: place for place, code in enumerate(_WORST_FIRST)}
    for code in sorted(outliers, key=lambda code: order.get(code, len(order))):
        found = _silent(attempt, outliers[code]) if code == _ERROR else _killed(attempt, code, outliers[code])
        if found:
            yield found


def _is_explained(attempt: Attempt, event: Event) -> bool:
    """Whether somebody else ended the process, or it reported why.

    -15 comes from the launcher, and so does -9 of its table if it came after the grace time. -6 follows from the
    watchdog if the rank reported a wait. A rank that reported a lost peer has explained its end.
    """
    code = event.number("code") or 0
    if code in NO_FAILURE_OF_ITS_OWN or (code == -SIGKILL and _killed_by_agent(attempt, event)):
        return True
    if event.pid is not None and (event.host, event.pid) in attempt.closed:
        return True
    if event.rank is None:
        lost = [e for e in attempt.of("victim") if event.host in (None, e.host) or event.pid == e.pid is not None]
        return code > 0 or (code == -SIGABRT and bool(lost or attempt.of("wait", "stuck", "cause")))
    return code in (1, -SIGABRT) and event.rank in attempt.in_trouble


def _killed_by_agent(attempt: Attempt, event: Event) -> bool:
    """Whether the table shows a first failure, and this end at least the agent's grace time after it."""
    if event.detail.get("by") != "table" or event.time_s is None:
        return False
    first = [e.time_s for e in attempt.exits.values() if e.number("root") and e is not event and e.time_s is not None]
    return any(event.time_s - time_s >= _AGENT_KILLS_AFTER_S for time_s in first)


def _killed(attempt: Attempt, code: int, events: list[Event]) -> Hypothesis:
    """Those that died of one signal; no rank, if others may have died before it."""
    ranks = ranks_of(events)
    who = named(ranks, "a process")
    others = {e.rank for e in attempt.of("victim", "wait")} - {*ranks, None}
    if code == -SIGSEGV and len(ranks) > 1 and not others:
        text = f"{who} died of SIGSEGV at the same time: a common cause in native code"
        shown = sorted(events, key=lambda e: not e.number("root"))[:3]
        return Hypothesis("segfault_all", text, shown, "certain", host=host_of(events))
    own = next((f": {e.text.strip()}" for e in events if e.detail.get("by") == "own"), "")
    unsaid = f"died of {_NAMES.get(-code, f'signal {-code}')}{own or '; why is not in these logs'}"
    what, how = _DEATHS.get(code, ("process_died_unknown", unsaid))
    first = [e for e in events if e.number("root")] or events
    if _is_ambiguous(attempt, events, others):
        return undecided(what, f"{who} {how}", first[:3], host=host_of(events))
    if code == -SIGABRT and len(first) == 1 and not own and (failed := _nccl_before(attempt, first[0])):
        text = f"{who} died of SIGABRT: {failed.text.strip()}"
        return Hypothesis(failed.what, text, [failed, *first], "likely", only_rank(ranks), host_of(events))
    confidence: Confidence = "certain" if len(ranks) == 1 else "likely"
    return Hypothesis(what, f"{who} {how}", first[:3], confidence, only_rank(ranks), host_of(events))


def _is_ambiguous(attempt: Attempt, events: list[Event], others: set[int | None]) -> bool:
    """Whether others may have died before these: the agent names one of several, or the table is cut."""
    # torchrun's agent names one of the processes that it found ended; the others are in the table below
    no_others_told = {e.detail.get("by") for e in events} == {"agent"} and not others and not attempt.of("closed")
    one_of_several = (no_others_told and (attempt.job.world or 0) > 1) or _others_gone(attempt, events)
    return one_of_several or any(e.detail.get("cut") for e in events)


def _nccl_before(attempt: Attempt, end: Event) -> Event | None:
    """The failure of NCCL that this process reported, if it did and said nothing else until it aborted.

    A line without a label is its own if no other rank wrote in the text.
    """
    job = attempt.job
    above = [e for e in job.events if e.place == end.place and e.line < end.line and e.rank in (None, end.rank)]
    last = next((e for e in reversed(above) if is_work(e) or e.role in ("cause", "echo", "said", "wrapper")), None)
    if last is None or last.role != "wrapper" or not last.what.startswith("nccl_"):
        return None
    no_other_writer = {e.rank for e in job.events if e.rank is not None} <= {end.rank}
    return last if last.rank is not None or no_other_writer else None


def _others_gone(attempt: Attempt, events: list[Event]) -> bool:
    """Whether the agent ended fewer processes than existed: the rest had died too, and it names only one of them.

    Workers start in the order of their ranks: `local_rank` of them started before the named one, and without a gap
    between process ids none is missing after it either. A table would list all that failed.
    """
    exits = attempt.of("exit")
    named_one = next((e for e in events if e.pid is not None and e.local_rank is not None), None)
    if named_one is None or {e.detail.get("by") for e in exits} != {"agent"}:
        return False
    pid, number = named_one.pid or 0, named_one.local_rank or 0
    pids = {e.pid for e in [*exits, *attempt.of("closed")] if e.pid is not None}
    before = {other for other in pids if other < pid}
    if len(pids) < 2 or len(before) > number:
        return False
    if len(pids) in _WHOLE_NODES and 2 * (max(pids) - min(pids) + 1) <= 3 * len(pids):
        return False  # a whole node's ranks: a gap between two ids is a process of another program
    in_a_row = pid - number <= min(pids)
    return len(before) < number or (in_a_row and len(pids) != max(pids) - (pid - number) + 1)


def _silent(attempt: Attempt, events: list[Event]) -> Hypothesis | None:
    """Exit code 1 without an error is a finding only if the errors of others show that it would have been logged."""
    ranks = ranks_of(events)
    # the error of nobody may be theirs
    if ranks and any(e.rank is None and not e.detail.get("warning") for e in attempt.of("cause")):
        return None
    if ranks and not attempt.job.head_missing() and _would_have_spoken(attempt, events, ranks):
        text = f"{named(ranks)} left with an exit code but without a traceback: os._exit, sys.exit or a native exit"
        return at_events("silent_exit", text, events, ranks=only_rank(ranks))
    exits = attempt.of("exit")
    # a launcher that lists how each of its processes ended: the others were ended by it
    lists_all = {e.word("by") for e in exits} == {"spawn"} and len({e.rank for e in exits}) > 1
    if lists_all and len(ranks) == 1 and all(e.rank in ranks or e.number("code") == -SIGTERM for e in exits):
        text = f"{named(ranks)} exited with code {events[0].number('code')}; why is not in this text"
        return Hypothesis("launcher_table_only", text, events[:3], ranks=ranks, unknown=True)
    text = "the launcher's table has exit codes only: the errors of the ranks are not in this text"
    if ranks and any(_OTHER_LOG.search(e.text) for e in events):
        text = f"the launcher says that {named(ranks)} failed; their own words are in logs that are not in this text"
    if {e.number("code") for e in exits} == {2}:
        text += "; code 2 is nearly always an argument that the program does not know"
    return undecided("launcher_table_only", text, events[:3], host=host_of(exits))


def _would_have_spoken(attempt: Attempt, events: list[Event], ranks: tuple[int, ...]) -> bool:
    """Whether a traceback of these ranks would be in the text: a file is theirs, or holds what ranks write."""
    job = attempt.job
    if any(_OTHER_LOG.search(e.text) for e in events):
        return False
    own_files = {f.local_rank for f in job.files if f.attempt == attempt.number}
    own_files |= {f.rank for f in job.files if f.rank is not None}
    if any(e.rank in own_files or (e.local_rank is not None and e.local_rank in own_files) for e in events):
        return True
    files = {e.file for e in events}
    # the file begins with a traceback: the error may have come before that
    late = any(e.what == "begins_failing" and e.file in files for e in job.events)
    worked = any(e.file in files for e in attempt.of("progress"))  # the file has the output of ranks
    return not late and (worked or bool(attempt.in_trouble - {*ranks}))


def early_exit(attempt: Attempt) -> Iterator[Hypothesis]:
    """A rank that neither failed nor was ended by the launcher exited by itself, with 0."""
    stops = attempt.of("fact", what="early_stop")
    # who reports a wait or an error did not leave by itself
    ended = _not_in_table(attempt) - attempt.in_trouble
    speakers = {*ranks_of(stops)} - attempt.in_trouble
    if not (ended or stops) or not attempt.of("victim", "wait"):
        return
    ranks = only_rank(speakers or ended)
    text = f"{named(ranks, 'one rank')} ended normally while the others still had work: uneven data or early stopping"
    shown = [e for e in stops if e.rank in ranks] or stops or attempt.of("exit", by="agent") or attempt.of("exit")
    yield at_events("early_exit", text, shown, "certain" if stops and ranks else "likely", ranks)


def _not_in_table(attempt: Attempt) -> set[int]:
    """The one rank that is neither in the table of failures nor ended by the agent."""
    rows = [e for e in attempt.of("exit", by="table") if e.rank is not None and e.local_rank is not None]
    shift = only((e.rank or 0) - (e.local_rank or 0) for e in rows)
    ended_unlisted = {e.pid for e in attempt.of("closed")} - {e.pid for e in rows}
    if shift is None or ended_unlisted or any(e.detail.get("cut") for e in rows):
        return set()
    listed = {e.local_rank for e in rows if e.local_rank is not None}
    present = {f.local_rank for f in attempt.job.files if f.attempt == attempt.number and f.local_rank is not None}
    missing = set(range(max(present | listed) + 1)) - listed
    return {number + shift for number in missing} if len(missing) == 1 else set()
