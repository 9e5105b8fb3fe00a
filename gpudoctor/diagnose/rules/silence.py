"""Hosts and ranks that are silent while others lose them, starts without an end, logs of victims or a launcher only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator

from gpudoctor.diagnose.events import TROUBLE, Event, only
from gpudoctor.diagnose.job import Attempt, Job
from gpudoctor.diagnose.rules.model import (
    Hypothesis,
    at_events,
    host_of,
    named,
    names_a_machine,
    only_rank,
    ranks_of,
    undecided,
)
from gpudoctor.text.grouped import grouped

_NEARLY_FULL_PCT = 80
# of the whole job: "Done!" may be a download's, and an epoch is followed by others
_END = re.compile(
    r"(?i)\b(?:train(?:ing)?|job|run|fit)\b.{0,40}\b(?:finished|completed?|done|succeeded)\b"
    r"|max_(?:steps|epochs|iters?|iterations)=\d+\W{0,3} reached\b|state=COMPLETED"
)
_EPOCH = re.compile(r"(?i)\bepochs?\b")
_MOST_LINES_AFTER = 20  # a log that goes on for longer shows that the start did
_SIGNS_OF_AN_END = ("exit", "closed", "ending", "wrapper")


def silent_places(attempt: Attempt) -> Iterator[Hypothesis]:
    """The host whose log ends without an error, or the one rank without one, while the others lost a peer."""
    job, victims = attempt.job, attempt.of("victim")
    if not victims:
        return
    if found := _silent_host(attempt, victims):
        yield found
        return
    silent = set(range(job.world or 0)) - attempt.in_trouble - {*attempt.exits}
    if len(silent) == 1 < (job.world or 0) and silent <= job.ranks_heard() and not attempt.of("exit", "closed"):
        text = f"{named(silent)} went without a word; all others lost their connection to it"
        host = host_of(e for e in job.events if e.rank in silent)
        yield Hypothesis("process_died_unknown", text, victims[:3], "possible", tuple(silent), host)


def _silent_host(attempt: Attempt, victims: list[Event]) -> Hypothesis | None:
    job = attempt.job
    files_of = grouped(
        (file.host or file.name, number)
        for number, file in enumerate(job.files)
        if file.text and file.local_rank is None and file.lines and (file.host or file.like_a_job)
    )
    loud = {e.file for e in job.of(*TROUBLE, *_SIGNS_OF_AN_END)}
    quiet = [host for host, numbers in files_of.items() if not loud.intersection(numbers)]
    if len(files_of) < 2 or len(quiet) != 1:
        return None
    host = quiet[0] if any(file.host == quiet[0] for file in job.files) else None
    ranks = ranks_of(e for e in job.events if e.file in files_of[quiet[0]])
    text = f"the log of {quiet[0]} ends without a word while the others lost their connection: node or agent lost"
    return Hypothesis("node_lost", text, victims[:3], ranks=only_rank(ranks), host=host)


def only_victims(attempt: Attempt) -> Iterator[Hypothesis]:
    """Every rank in the logs only lost another one: the first failure is not in this text."""
    victims = attempt.of("victim")
    if victims and all(e.what == "ib_flushed" for e in victims):
        text = "requests were flushed: they follow from another error of the same queue, which is not in this text"
        yield undecided("ib_completion_error", text, victims[:3], host=host_of(victims))
    elif victims:
        peer = only(peer for e in (*victims, *attempt.of("fact", what="peer")) if (peer := e.word("peer")))
        rank = only(number for e in victims if (number := e.word("named")))
        lost = f"the peer at {peer}" if peer else f"rank {rank}" if rank else "a peer"
        if any(e.what == "store_lost" for e in victims):
            lost = "the holder of the store (rank 0)"
        exits = [e for e in attempt.of("exit") if peer and e.host and f"{peer}.".startswith(f"{e.host}.")]
        code = f" (exit code {exits[0].number('code')})" if exits else ""
        text = f"{_who(victims)} only lost a connection: {lost} ended before that{code}"
        text += ", and its words are not in this text"
        host = peer if peer and names_a_machine(peer) else None
        yield undecided("victims_only", text, [*victims[:3], *exits[:1]], host=host)


def _who(events: Collection[Event], nobody: str = "all who speak") -> str:
    return named(ranks_of(events), nobody)


def only_a_launcher(attempt: Attempt) -> Iterator[Hypothesis]:
    """The launcher reports that something failed, and no line shows what."""
    events = [e for e in attempt.of("wrapper") if not attempt.job.outlived(e)]
    by_what = grouped((e.what, e) for e in events)
    reported = [e for e in events if e.what in ("child_failed", "launcher_exit")] or events
    exits = [e for e in attempt.of("exit") if e.number("code")]
    if exits and {e.number("code") for e in exits} <= {-15, -1, -2}:
        text = "all processes were ended by a signal from outside; nothing failed before"
        by_srun = all(e.detail.get("by") == "srun" for e in exits)
        yield at_events("terminated_signal", text, exits, unknown=by_srun)
    elif not reported and not exits:
        yield from _only_closed(attempt)
    elif closed := by_what.get("rendezvous_closed"):
        text = "the rendezvous was closed before this agent came: the job had ended or failed elsewhere"
        yield undecided("rendezvous_closed", text, closed[:3], host=host_of(closed))
    elif not exits and by_what.keys() == {"watchdog_abort"}:
        text = f"the watchdog of {_who(reported)} ended it: a collective failed or timed out; why is not in this text"
        yield undecided("nccl_unknown", text, reported, host=host_of(reported))
    elif crashed := by_what.get("cpp_terminate"):
        text = f"{_who(crashed, 'a program')} ended itself over an error in native code: {crashed[0].text.strip()}"
        yield undecided("process_died_unknown", text, crashed, host=host_of(crashed))
    else:
        text = "the launcher says that processes failed; their own words are not in this text"
        both = [*exits, *reported]
        yield undecided("launcher_table_only", text, both[:3], host=host_of(both))


def _only_closed(attempt: Attempt) -> Iterator[Hypothesis]:
    """The launcher ended the processes, and no line shows why; if the RAM was nearly full, the kernel is suspected."""
    job, closed = attempt.job, attempt.of("closed")
    if not closed or any(e.what == "restart" for e in job.events):
        return
    last = closed[-1]
    if job.worked_after(last) or ended_before(job, last):
        return
    full = [e for e in job.events if (e.number("ram_pct") or 0) >= _NEARLY_FULL_PCT and e.line < last.line]
    why = f"; the host's RAM was {full[-1].number('ram_pct')} % full: the OOM killer is suspected" if full else ""
    text = f"the launcher ended the processes of the job, and why is not in this text{why}"
    what = "host_oom" if full else "launcher_table_only"
    yield undecided(what, text, [*full[-1:], *closed[:2]], host=host_of(closed))


def ended_before(job: Job, event: Event) -> bool:
    """Whether the job, not only an epoch or a download, had reported its end."""
    ends = [e for e in job.of("done") if _END.search(e.text) and not _EPOCH.search(e.text)]
    return any(e.file == event.file and e.line < event.line for e in ends)


def unfinished_start(job: Job) -> Iterator[Hypothesis]:
    """The step of the start that was begun last and never ended, and who is missing in it.

    Nothing, if any line shows work, an error or an end: other rules read those.
    """
    if job.worked or job.of(*_SIGNS_OF_AN_END, *TROUBLE):
        return
    begun = [e for e in job.of("fact", what="begins") if not _ended(job, e)]
    late = [e for e in begun if job.files[e.file].lines - e.line <= _MOST_LINES_AFTER]
    if not late:
        return
    last = late[-1]
    reported = [e for e in begun if _step(e) == _step(last)]
    came = Counter(e.rank for e in reported if e.rank is not None)
    if 0 in came or not last.detail.get("rank_0_ends"):  # else another node's log may have its end
        yield _never_ended(job, last, reported, came)


def _never_ended(job: Job, last: Event, reported: list[Event], came: Counter[int]) -> Hypothesis:
    step = last.word("step") or ""
    world = max((e.number("world") or 0 for e in reported), default=0) or job.world or 0
    counted = max((e.number("came") or 0 for e in reported), default=0)
    if counted > len(came):  # the barrier counts more than these lines name
        text = f"{counted} of {world} ranks came to {step}, which never ended; who is missing is not in this text"
        return undecided("init_hang", text, [last, *reported], host=host_of(reported))
    missing = sorted(set(range(world)) - {*came}) if came else []
    twice = sorted(rank for rank, times in came.items() if times > 1)
    text = f"the last thing logged is {step}, and nothing shows that it ended"
    if missing and twice:
        text += (
            f": {named(twice)} of {world} came more than once, {named(missing)} never: several nodes count the "
            "same ranks (the node's rank, or the launcher's tasks, were not passed on)"
        )
    elif missing:
        text += f": {named(missing)} of {world} never came to it"
    elif came and world:
        text += f", although all {world} ranks came to it: they do not reach each other, or one hangs in it"
    shown = reported[:3] if last in reported[:3] else [*reported[:3], last]
    if missing and twice:
        return Hypothesis("init_hang", text, shown, host=host_of(reported))
    return undecided("init_hang", text, shown, host=host_of(reported))


def _step(event: Event) -> tuple[str | None, str | None]:
    return event.word("step"), event.word("group")


def _ended(job: Job, begins: Event) -> bool:
    """Whether some writer logged the end of this step; those of one communicator end together."""
    ends = [e for e in job.of("fact", what="begun") if _step(e) == _step(begins)]
    return any(e.file != begins.file or e.line > begins.line for e in ends)
