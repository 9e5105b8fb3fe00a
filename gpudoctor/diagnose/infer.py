"""Ranks all hypotheses by kind of evidence.

Kinds of evidence count before times: clocks differ between hosts, and the first rank to report an error is seldom the
first to fail.
"""

from __future__ import annotations

import re
from itertools import chain

from gpudoctor.diagnose.events import TROUBLE, Event, only
from gpudoctor.diagnose.job import Attempt, Job, is_work
from gpudoctor.diagnose.places import REQUEUED
from gpudoctor.diagnose.rules import collective_timeouts, direct, dumps, ends, missing_peers, outside, said, silence
from gpudoctor.diagnose.rules.model import Hypothesis, Rule, host_of, only_rank, ranks_of
from gpudoctor.statements.about import place_in

# the kinds of evidence, the strongest first: the first hypothesis of the first rule that has one is the cause
_RULES: tuple[Rule, ...] = (
    # the machine, the scheduler or a program names it
    outside.gpu_faults,
    outside.told_why_killed,
    outside.scheduler_endings,
    outside.out_of_host_memory,
    direct.mismatches,
    direct.direct_causes,
    ends.deaths,
    outside.said_dead,
    direct.strong_echoes,
    # who waits for whom
    dumps.from_dumps,
    dumps.from_stacks,
    dumps.ras_behind,
    collective_timeouts.nccl_timeouts,
    missing_peers.stalled_tensors,
    collective_timeouts.watchdogs_stuck,
    missing_peers.missing_ranks,
    missing_peers.gloo_timeouts,
    # who ended, or is silent
    ends.early_exit,
    ends.silent_exits,
    outside.signals_and_cancels,
    outside.program_xids,
    silence.silent_places,
    # what others only report, and what is left
    direct.weak_causes,
    direct.weak_echoes,
    ends.codes_alone,
    silence.only_victims,
    silence.only_a_launcher,
    missing_peers.stalls_without_tensors,
)
_ENDED_FROM_OUTSIDE = (0, -2, -9, -15)  # SIGINT, SIGKILL, SIGTERM
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){0,8}(?:[A-Z]\w{0,60})?(?:Error|Exception): ")
_OF_A_GPU = ("gpu_lost", "gpu_ecc", "gpu_xid", "nvlink_failed", "wrong_results")
# deaths, and what a launcher reports with all that it may come from
_WITH_REASON = ("killed_sigkill", "segfault", "segfault_all", "sigbus", "mpi_failed")
WITHOUT_REASON = ("process_died_unknown", "silent_exit", "launcher_table_only")
_FATAL = ("exit", "ending", "wait", "stuck", "victim", "wrapper", "closed")


def hypotheses(job: Job) -> list[Hypothesis]:
    """All hypotheses, the best first; empty if nothing is wrong."""
    found = _of_failed_attempt(job)
    last = Attempt(job, job.attempts - 1)
    for last_resort in (
        said.failed_saying(last),
        silence.unfinished_start(job),
        silence.waits_for_resources(job),
        said.unknown_errors(job),
        said.stood_still(job),
        said.only_heartbeats(job),
    ):
        found = found or [*last_resort]
    if found and not found[0].host:
        found[0].host = _found_host(job, found[0])
    return found


def _of_failed_attempt(job: Job) -> list[Hypothesis]:
    """What the rules say of the first failed attempt; empty if there is none, or if the job went on."""
    number = first_failed_attempt(job)
    if (number is None or went_on(job)) and not job.dumps and not job.stacks:
        return []
    attempt = Attempt(job, number or 0)
    found = [*chain.from_iterable(rule(attempt) for rule in _RULES)]
    if not found and not job.of("done"):
        found = [*dumps.undecided_stacks(attempt)]
    if found and found[0].events and all(e.role == "echo" and e.detail.get("warning") for e in found[0].events):
        found = [*said.unknown_errors(job), *found]  # the job may have gone on after it
    return _with_own_words(attempt, found)


def _with_own_words(attempt: Attempt, found: list[Hypothesis]) -> list[Hypothesis]:
    """With what the programs said themselves, if the best hypothesis names no reason."""
    if not found or found[0].unknown or found[0].what in WITHOUT_REASON:
        statement = [*said.failed_saying(attempt)]
        if found and statement and (found[0].what == statement[0].what or _follows(statement[0], found[0])):
            return found
        # the end of a process that is not named has its reason now
        return [*statement, *(found[1:] if statement and found and not found[0].ranks else found)]
    if found[0].what in _WITH_REASON and found[0].events:
        found[0] = said.with_reason(attempt, found[0])
    return found


def _follows(statement: Hypothesis, death: Hypothesis) -> bool:
    """Whether it was said only after the death."""
    if death.what != "process_died_unknown" or death.unknown or not death.events:
        return False
    end = death.events[0].file, death.events[0].line
    return all((e.file, e.line) > end for e in statement.events)


def first_failed_attempt(job: Job) -> int | None:
    """The number of the first attempt with a sign of failure; later failures may follow from it.

    An attempt that the scheduler ended counts only if something had failed in it: Slurm cancels failed steps too.
    """
    attempts = sorted({e.attempt for e in job.of(*_FATAL, *TROUBLE)})
    ended = [e for e in job.of("ending") if e.what in REQUEUED]
    requeued = {e.attempt for e in ended if not _failed_itself(job, e)}
    failed = [a for a in attempts if a not in requeued or a == job.attempts - 1]
    return next(iter(failed or attempts), None)


def _failed_itself(job: Job, ending: Event) -> bool:
    """Whether something failed in this attempt before the scheduler ended it, or a process exited with an error."""
    if outside.failed_before(Attempt(job, ending.attempt), ending, lost_peers_count=False):
        return True
    if any(e.what == "host_oom" for e in job.of("cause", attempt=ending.attempt)):
        return True
    exits = [e for e in job.of("exit", attempt=ending.attempt) if e.file == ending.file and e.line < ending.line]
    return any((e.number("code") or 0) not in _ENDED_FROM_OUTSIDE for e in exits)


def recovered(job: Job) -> Hypothesis | None:
    """What failed in an earlier attempt, as a note, if the last attempt ended well."""
    failed = first_failed_attempt(job)
    if failed is None or failed == job.attempts - 1:
        return None
    last = job.attempts - 1
    if any(e.attempt == last for e in job.of(*_FATAL, *TROUBLE)):
        return None
    shown = [e for e in job.of("progress", "done") if e.attempt == last]
    if not shown:
        return None
    causes = job.of("cause", attempt=failed) or job.of("exit", attempt=failed) or job.of("ending", attempt=failed)
    ended = "ran to its end" if any(e.role == "done" for e in shown) else "went further"
    text = f"attempt {failed} failed ({causes[0].text if causes else 'see the log'}); attempt {last} {ended}"
    return Hypothesis(
        "recovered",
        text,
        [*causes[:2], shown[-1]],
        ranks=only_rank(ranks_of(causes)),
        host=host_of(causes) or only(job.hosts),
        confidence="certain",
    )


def went_on(job: Job) -> bool:
    """Whether the job went on after everything that looks like an error, and no line shows that a process ended."""
    if any(_is_an_end(job, event) for event in job.events):
        return False
    troubles = [e for e in job.events if e.role in (*TROUBLE, "wrapper") and not _is_excused(job, e)]
    # a host whose own name does not resolve: no trouble of a job that does not fail to connect
    if all(e.what == "bootstrap_no_interface" and e.detail.get("warning") for e in troubles):
        return True
    return all(_outlived(job, [e for e in troubles if e.file == file]) for file in {e.file for e in troubles})


def _is_an_end(job: Job, event: Event) -> bool:
    if event.role not in ("exit", "wait", "stuck", "ending", "closed"):
        return False
    # a launcher may be ended by a signal when its work is done
    late = event.what == "terminated_signal" and silence.ended_before(job, event)
    return not late and not (event.role == "wait" and event.detail.get("warning"))


def _is_excused(job: Job, event: Event) -> bool:
    """Whether what looks like trouble is none of this job."""
    warning = bool(event.detail.get("warning"))
    return (
        job.outlived(event)
        or outside.of_another_program(job, event)
        or (event.role == "echo" and warning and job.worked)
        # the store ends with rank 0
        or (event.what == "store_lost" and warning and job.finished)
        # an Xid of any program
        or (event.number("xid") is not None and event.strength < 3 and job.finished and not outside.is_hard(event))
    )


def _outlived(job: Job, troubles: list[Event]) -> bool:
    """Whether enough work follows on all troubles of one file."""
    last = max(e.line for e in troubles)
    raised = any(e.detail.get("traceback") for e in troubles)
    # every bar is drawn once more when an exception ends its program; what a broken GPU computes is no proof
    no_bars = raised or any(e.what in _OF_A_GPU or _EXCEPTION.match(e.text) for e in troubles)
    no_word = raised or any(e.role == "cause" and e.strength >= 2 for e in troubles)

    def is_proof(e: Event) -> bool:
        return is_work(e) and not (no_bars and e.what == "work") and not (no_word and e.detail.get("one_word"))

    after = [e for e in job.events if e.file == troubles[0].file and e.line > last and is_proof(e)]
    return len(after) >= 3 or any(e.role == "done" or e.what == "unstuck" for e in after)


def _found_host(job: Job, best: Hypothesis) -> str | None:
    """The host of its ranks, else the one that its lines name as the place of what they report."""
    if best.ranks:
        return only({e.host for e in job.events if e.rank in best.ranks and e.host} or job.hosts)
    told = [e for e in best.events if e.role == "exit" or e.what == "host_oom"]  # a program's words name any host
    return only(place for e in told if (place := place_in(e.text)))
