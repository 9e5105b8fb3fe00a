"""Causes outside the program: the scheduler, the kernel, a lost node, signals."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.job import Attempt, Job, is_work
from gpudoctor.diagnose.rules.model import Hypothesis, at_events, host_of, named, only_rank, ranks_of
from gpudoctor.statements.about import normal_bus_id
from gpudoctor.statements.catalogue import ECC_XIDS
from gpudoctor.statements.prefixes import seconds_between, seconds_in_year
from gpudoctor.statements.xids import XIDS
from gpudoctor.text.units import rounded_duration_text

_FOLLOWS = {43, 45}
_OFF_BUS = 79
_INTERRUPTED = re.compile(r"\b2 death signal|got signal: 2\b|SIGINT|KeyboardInterrupt")
_ENDED_AT = re.compile(r"CANCELLED AT (\d{4})-(\d\d)-(\d\d)T(\d\d:\d\d:\d\d)")
_LONG_S, _TIMES_LONGER = 1800.0, 10  # of the longest step before
_ZONE_S, _NEAR_ZONE_S = 900.0, 30.0
_MOST_LINES_BEHIND = 100  # its last step: a job that writes more may work
_BY_HAND = " (SIGINT: Ctrl-C or a user's word; if the job stood still before that, what it waited for is the question)"
_OTHER_PROGRAM = re.compile(r"\((?!python|pt_|ray|torchrun|train|deepspeed|accelerate|vllm|java|pt_data)")
_GONE = "went without an error of its own: killed, or crashed in native code; which of them is not in this text"
_LOST = {  # who it was if no rank is named, and what is known
    "process_died_unknown": ("a process", _GONE),
    "heartbeat_lost": (
        "a process",
        "sent no heartbeat: killed, crashed in native code, or held by one long call; which is not in this text",
    ),
    "node_lost": ("a node", _GONE),
}


def scheduler_endings(attempt: Attempt) -> Iterator[Hypothesis]:
    """Time limit, preemption, eviction or a lost node, as the scheduler reports them, if nothing failed before."""
    for what in ("node_lost", "preempted", "time_limit", "evicted"):
        events = _endings(attempt, what)
        if events and not failed_before(attempt, events[0], lost_peers_count=False):
            still = _stood_still(attempt.job, events[0]) if what == "time_limit" else ""
            yield at_events(what, events[0].text + still, events, "certain")


def signals_and_cancels(attempt: Attempt) -> Iterator[Hypothesis]:
    """A signal to the launcher, Ctrl-C or scancel, if nothing failed before it."""
    signals, cancels = (_endings(attempt, what) for what in ("terminated_signal", "cancelled"))
    cancelled_first = cancels and signals and _before(cancels[0], signals[0])  # the signals follow from it then
    for what, events in (("terminated_signal", [] if cancelled_first else signals), ("cancelled", cancels)):
        if not events or failed_before(attempt, events[0], lost_peers_count=True):
            continue
        strongest = max(e.strength for e in events)
        reported = [e for e in events if e.strength == strongest]
        by_hand = what == "terminated_signal" and _INTERRUPTED.search(reported[0].text)
        found = at_events(what, reported[0].text + (_BY_HAND if by_hand else ""), reported)
        found.events, found.confidence = reported[:3], "certain" if strongest > 1 else "likely"
        if what == "cancelled":
            found.host, found.unknown = None, all(" STEP " in e.text for e in reported)
        yield found


def _endings(attempt: Attempt, what: str) -> list[Event]:
    """The words of a scheduler or a user, of this attempt or a later one."""
    return [e for e in attempt.job.of("ending", what=what) if e.attempt >= attempt.number]


def _stood_still(job: Job, limit: Event) -> str:
    """That the job did nothing for long before its time limit, by the times of its steps and of the limit's line.

    Nothing is said if one of its files goes on behind its last step, or has no time there. Clocks may differ by time
    zones, which are multiples of a quarter of an hour: such a difference proves nothing.
    """
    stamp = _ENDED_AT.search(limit.text)
    ended_s = seconds_in_year(int(stamp[2]), int(stamp[3]), stamp[4]) if stamp else None
    steps = job.of("progress", attempt=limit.attempt)
    step_s = max((e.number("longest_step_s") or 0 for e in steps), default=0)
    last = _last_work(job, limit)
    if stamp is None or ended_s is None or last is None or not step_s:
        return ""
    silent_s = seconds_between(last, ended_s, int(stamp[1]))
    if silent_s is None or silent_s < max(_LONG_S, _TIMES_LONGER * step_s):
        return ""
    if abs(silent_s - _ZONE_S * round(silent_s / _ZONE_S)) <= step_s + _NEAR_ZONE_S:
        return ""
    return (
        f"; its last step was logged {rounded_duration_text(silent_s)} before that: it stood still, if both times are "
        "of one time zone"
    )


def _last_work(job: Job, limit: Event) -> float | None:
    """When the last work before the limit was done; None if it may have gone on without a time."""
    work = (e for e in job.events if is_work(e) and e.attempt == limit.attempt)
    last = {e.file: e for e in work if e.file != limit.file or e.line <= limit.line}
    for number, event in last.items():
        end = limit.line if number == limit.file else job.files[number].lines
        if event.time_s is None or end - event.line > _MOST_LINES_BEHIND:
            return None
    return max((e.time_s for e in last.values() if e.time_s is not None), default=None)


def failed_before(attempt: Attempt, ending: Event, *, lost_peers_count: bool) -> bool:
    """Whether something failed or hung before the job was ended; lost peers may have been ended with the job.

    Who waited before a node was lost, or heard no heartbeat, has often waited for that node; an unnamed CUDA error may
    be its end: the scheduler notices last.
    """
    lost = ending.what == "node_lost" and "node failure" in ending.text.lower()  # of this job, by srun and slurmstepd
    waits = () if lost else ("wait", "stuck")
    for event in attempt.of("cause", *waits, *(("victim",) if lost_peers_count else ())):
        if event.what == "host_oom" or (event.strength < 2 and event.role == "cause"):
            continue
        if lost and (event.what == "heartbeat_lost" or "CUDA error: unknown error" in event.text):
            continue
        if event.what == "node_lost" and ending.what == "preempted":  # Ray names the node first, then why it went
            continue
        if _before(event, ending):
            return True
        if event.file != ending.file and event.role != "victim" and not _later(event, ending):
            return True
    return False


def _before(event: Event, other: Event) -> bool:
    return event.file == other.file and event.line < other.line


def _later(event: Event, other: Event) -> bool:
    return event.time_s is not None and other.time_s is not None and event.time_s > other.time_s + 1


def said_dead(attempt: Attempt) -> Iterator[Hypothesis]:
    """A controller reports that a process or node is lost or silent, without a reason."""
    for what, (who, text) in _LOST.items():
        if events := attempt.of("cause", what=what):
            ranks = only_rank(ranks_of(events))
            host = host_of(e for e in events if e.host or e.word("address"))  # the label's address is its reporter's
            yield Hypothesis(what, f"{named(ranks, who)} {text}", events[:3], ranks=ranks, host=host)


def out_of_host_memory(attempt: Attempt) -> Iterator[Hypothesis]:
    """The kernel, Slurm, the kubelet or Ray killed a process for memory: evidence that exit code -9 alone is not."""
    own = [e for e in attempt.of("cause", what="host_oom") if not of_another_program(attempt.job, e)]
    if own:
        ranks = ranks_of(own)
        who = named(ranks, "a process of the job")
        text = f"{who} was killed because the memory of the host or of its cgroup ran out"
        shown = sorted(own, key=lambda e: e.rank is None)[:4]
        host = host_of([e for e in own if e.rank is not None] or own)
        yield Hypothesis("host_oom", text, shown, "certain", only_rank(ranks), host)


def of_another_program(job: Job, event: Event) -> bool:
    """Whether the kernel killed something else for memory; the process that asked for memory need not be the victim."""
    if event.what != "host_oom":
        return False
    if "invoked oom-killer" in event.text:
        killed = any(e.pid is not None and e.file == event.file for e in job.of("cause", what="host_oom"))
        other = _OTHER_PROGRAM.match(f"({event.word('name') or ''}")
        return killed or other is not None or bool(job.of("done"))
    pids = {e.pid for e in job.of("exit", "closed", "fact") if e.pid}
    return event.pid is not None and event.pid not in pids and bool(pids and _OTHER_PROGRAM.search(event.text))


def gpu_faults(attempt: Attempt) -> Iterator[Hypothesis]:
    """Xids, lost GPUs and ECC errors: the kernel's report counts more than a library's."""
    job = attempt.job
    hard = [e for e in job.of("cause", what="gpu_xid") if is_hard(e) and e.number("xid") not in _FOLLOWS]
    lost = [*job.of("cause", what="gpu_lost"), *(e for e in hard if e.number("xid") == _OFF_BUS)]
    ecc = [*(e for e in hard if e.number("xid") in ECC_XIDS), *attempt.of("cause", what="gpu_ecc")]
    others = [e for e in hard if e.number("xid") not in ECC_XIDS | {_OFF_BUS}]
    for what, events in (("gpu_lost", lost), ("gpu_ecc", ecc), ("gpu_xid", others)):
        if events:
            gpus = sorted({e.gpu for e in events if e.gpu}, key=lambda gpu: (":" not in gpu, gpu))
            found = _at_gpu(job, what, events, [gpu for gpu in gpus if ":" in gpu] or gpus)
            found.ranks = found.ranks or only_rank(ranks_of(events))
            found.confidence = "certain" if any(job.files[e.file].kernel_log for e in events) else "likely"
            yield found


def program_xids(attempt: Attempt) -> Iterator[Hypothesis]:
    """Xids that a fault of the program causes (13, 31): a hypothesis only if the program's own errors are missing."""
    if events := [e for e in attempt.job.of("cause", what="gpu_xid") if not is_hard(e)]:
        yield _at_gpu(attempt.job, "gpu_xid", events, {e.gpu for e in events if e.gpu})


def _at_gpu(job: Job, what: str, events: list[Event], gpus: Collection[str]) -> Hypothesis:
    """What these events say, of the one GPU that they name, and of its rank."""
    gpu = normal_bus_id(next(iter(gpus))) if len(gpus) == 1 else None
    rank = job.bus_ids.get(gpu) if gpu else None
    code = events[0].number("xid")
    known = XIDS.get(code) if code is not None else None
    found = at_events(what, f"Xid {code}: {known.words}" if known else events[0].text, events)
    found.gpu, found.ranks = gpu, (rank,) if rank is not None else ()
    return found


def is_hard(event: Event) -> bool:
    """Whether the event is a fault of the GPU, not one of a program or a mere consequence."""
    known = XIDS.get(event.number("xid") or 0)
    return known is None or known.bucket not in ("application", "info")
