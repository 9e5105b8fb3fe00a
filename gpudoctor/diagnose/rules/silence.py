"""Hosts and ranks that are silent while others lose them, starts without an end, logs of victims or a launcher only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from gpudoctor.diagnose.events import TROUBLE, Event
from gpudoctor.diagnose.job import Job
from gpudoctor.diagnose.rules.model import Hypothesis, at_events, host_of, named, only_rank, ranks_of, undecided

_NEARLY_FULL_PCT = 80
# of the whole job: "Done!" may be a download's, and an epoch is followed by others
_END = re.compile(
    r"(?i)\b(?:train(?:ing)?|job|run|fit)\b.{0,40}\b(?:finished|completed?|done|succeeded)\b"
    r"|max_(?:steps|epochs)\S* reached|state=COMPLETED"
)
_EPOCH = re.compile(r"(?i)\bepochs?\b")
_MOST_LINES_AFTER = 20  # a log that goes on for longer shows that the start did
_SIGNS_OF_MORE = ("exit", "closed", "ending", "wrapper", "progress", "done", *TROUBLE)


def silent_places(job: Job, attempt: int) -> list[Hypothesis]:
    """The host whose log ends without an error, or the one rank without one, while the others lost a peer."""
    victims = job.of("victim", attempt=attempt)
    if not victims:
        return []
    found = _silent_host(job, attempt)
    if found is not None:
        return [found]
    if not job.world or job.world < 2:
        return []
    trouble = job.ranks_in_trouble(attempt)
    exits = job.exits(attempt)
    reporting = job.ranks_heard()
    silent = {r for r in range(job.world) if r not in trouble and r not in exits}
    if len(silent) == 1 and silent <= reporting and not job.of("exit", "closed", attempt=attempt):
        text = f"{named(silent)} went without a word; all others lost their connection to it"
        return [
            Hypothesis(
                "process_died_unknown",
                text,
                victims[:3],
                ranks=tuple(silent),
                host=host_of(e for e in job.events if e.rank in silent),
                confidence="possible",
            )
        ]
    return []


def _silent_host(job: Job, attempt: int) -> Hypothesis | None:
    of_host: dict[str, list[int]] = {}
    for number, file in enumerate(job.files):
        if file.text and file.local_rank is None and file.lines and (file.host or file.like_a_job):
            of_host.setdefault(file.host or file.name, []).append(number)
    if len(of_host) < 2:
        return None
    quiet: list[str] = []
    for host, numbers in of_host.items():
        events = [e for e in job.events if e.file in numbers]
        if not any(e.role in (*TROUBLE, "exit", "ending", "wrapper", "closed") for e in events):
            quiet.append(host)
    if len(quiet) != 1:
        return None
    known = any(file.host == quiet[0] for file in job.files)
    ranks = ranks_of(e for e in job.events if e.file in of_host[quiet[0]])
    shown = list(job.of("victim", attempt=attempt))[:3]
    text = f"the log of {quiet[0]} ends without a word while the others lost their connection: node or agent lost"
    return Hypothesis("node_lost", text, shown, ranks=only_rank(ranks), host=quiet[0] if known else None)


def only_victims(job: Job, attempt: int) -> list[Hypothesis]:
    """Every rank in the logs only lost another one: the first failure is not in this text."""
    victims = list(job.of("victim", attempt=attempt))
    if not victims:
        return []
    if all(e.what == "ib_flushed" for e in victims):
        text = "requests were flushed: they follow from another error of the same queue, which is not in this text"
        return [undecided("ib_completion_error", text, victims[:3], host=host_of(victims))]
    store = [e for e in victims if e.what == "store_lost"]
    host = job.store_host()
    peers = {peer for e in victims if (peer := e.word("peer"))}
    peer = f"the peer at {peers.pop()}" if len(peers) == 1 else "a peer"
    message = f"{'the holder of the store (rank 0)' if store else peer} ended before that"
    text = f"{_who(victims)} only lost a connection: {message}, and its words are not in this text"
    return [undecided("victims_only", text, victims[:3], host=host)]


def _who(events: Collection[Event]) -> str:
    return named(ranks_of(events)) if ranks_of(events) else "all who speak"


def only_a_launcher(job: Job, attempt: int) -> list[Hypothesis]:
    """The launcher reports that something failed, and no line shows what."""
    events = [e for e in job.of("wrapper", attempt=attempt) if not job.outlived(e)]
    reported = [e for e in events if e.what in ("child_failed", "launcher_exit")] or events
    exits = [e for e in job.of("exit", attempt=attempt) if e.number("code")]
    if exits and {e.number("code") for e in exits} <= {-15, -1, -2}:
        text = "all processes were ended by a signal from outside; nothing failed before"
        return [at_events("terminated_signal", text, exits, unknown=all(e.detail.get("by") == "srun" for e in exits))]
    if not reported and not exits:
        return _only_closed(job, attempt)
    if closed := [e for e in events if e.what == "rendezvous_closed"]:
        text = "the rendezvous was closed before this agent came: the job had ended or failed elsewhere"
        return [undecided("rendezvous_closed", text, closed[:3], host=host_of(closed))]
    if not exits and {e.what for e in reported} == {"watchdog_abort"}:
        text = f"the watchdog of {_who(reported)} ended it: a collective failed or timed out; why is not in this text"
        return [undecided("nccl_unknown", text, reported, host=host_of(reported))]
    text = "the launcher says that processes failed; their own words are not in this text"
    return [undecided("launcher_table_only", text, [*exits, *reported][:3], host=host_of([*exits, *reported]))]


def _only_closed(job: Job, attempt: int) -> list[Hypothesis]:
    """The launcher ended the processes, and no line shows why; if the RAM was nearly full, the kernel is suspected."""
    closed = list(job.of("closed", attempt=attempt))
    if not closed or any(e.what == "restart" for e in job.events):
        return []
    last = closed[-1]
    if job.worked_after(last) or ended_before(job, last):
        return []
    full = [e for e in job.events if (e.number("ram_pct") or 0) >= _NEARLY_FULL_PCT and e.line < last.line]
    why = f"; the host's RAM was {full[-1].number('ram_pct')} % full: the OOM killer is suspected" if full else ""
    text = f"the launcher ended the processes of the job, and why is not in this text{why}"
    what = "host_oom" if full else "launcher_table_only"
    return [undecided(what, text, [*full[-1:], *closed[:2]], host=host_of(closed))]


def ended_before(job: Job, event: Event) -> bool:
    """Whether the job, not only an epoch or a download, had reported its end."""
    ends = [e for e in job.of("done") if _END.search(e.text) and not _EPOCH.search(e.text)]
    return any(e.file == event.file and e.line < event.line for e in ends)


def unfinished_start(job: Job) -> list[Hypothesis]:
    """The step of the start that was begun last and never ended, and who is missing in it.

    Nothing, if any line shows work, an error or an end: other rules read those.
    """
    if any(e.role in _SIGNS_OF_MORE or e.what == "work" for e in job.events):
        return []
    begun = [e for e in job.events if e.what == "begins" and not _ended(job, e)]
    late = [e for e in begun if job.files[e.file].lines - e.line <= _MOST_LINES_AFTER]
    if not late:
        return []
    last = late[-1]
    reported = [e for e in begun if _step(e) == _step(last)]
    came = Counter(e.rank for e in reported if e.rank is not None)
    if 0 not in came and last.detail.get("rank_0_ends"):  # another node's log may have its end
        return []
    return [_never_ended(job, last, reported, came)]


def _never_ended(job: Job, last: Event, reported: list[Event], came: Counter[int]) -> Hypothesis:
    step = last.word("step") or ""
    world = max((e.number("world") or 0 for e in reported), default=0) or job.world or 0
    counted = max((e.number("came") or 0 for e in reported), default=0)
    if counted > len(came):  # the barrier counts more than these lines name
        text = f"{counted} of {world} ranks came to {step}, which never ended; who is missing is not in this text"
        return undecided("init_hang", text, [last, *reported], host=host_of(reported))
    missing = sorted(set(range(world)) - set(came)) if came else []
    twice = sorted(rank for rank, times in came.items() if times > 1)
    decided = bool(missing and twice)
    return Hypothesis(
        "init_hang",
        _who_came(step, world, came, missing, twice),
        reported[:3] if last in reported[:3] else [*reported[:3], last],
        host=host_of(reported),
        confidence="likely" if decided else "possible",
        unknown=not decided,
    )


def _step(event: Event) -> tuple[str | None, str | None]:
    return event.word("step"), event.word("group")


def _who_came(step: str, world: int, came: Counter[int], missing: list[int], twice: list[int]) -> str:
    text = f"the last thing logged is {step}, and nothing shows that it ended"
    if missing and twice:
        return (
            f"{text}: {named(twice)} of {world} came more than once, {named(missing)} never: several nodes count the "
            "same ranks (the node's rank, or the launcher's tasks, were not passed on)"
        )
    if missing:
        return f"{text}: {named(missing)} of {world} never came to it"
    if came and world:
        return f"{text}, although all {world} ranks came to it: they do not reach each other, or one hangs in it"
    return text


def _ended(job: Job, begins: Event) -> bool:
    """Whether some writer logged the end of this step; those of one communicator end together."""
    ends = [e for e in job.events if e.what == "begun" and _step(e) == _step(begins)]
    return any(e.file != begins.file or e.line > begins.line for e in ends)
