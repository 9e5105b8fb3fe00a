"""Orders all hypotheses by kind of evidence.

Kinds of evidence count before times: clocks differ between hosts, and the first rank to report an error is seldom the
first to fail.
"""

from __future__ import annotations

from itertools import chain

from gpudoctor.diagnose.events import only
from gpudoctor.diagnose.job import Attempt, Job
from gpudoctor.diagnose.rules import collective_timeouts, direct, dumps, ends, missing_peers, outside, said, silence
from gpudoctor.diagnose.rules.attempts import first_failed_attempt, went_on
from gpudoctor.diagnose.rules.model import Hypothesis, Rule
from gpudoctor.statements.about import place_in

# the kinds of evidence, the strongest first: the first hypothesis of the first rule that has one is the cause
_RULES: tuple[Rule, ...] = (
    # the machine, the scheduler or a program names it
    outside.gpu_faults,
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
# deaths, and what a launcher reports with all that it may come from
_WITH_REASON = ("killed_sigkill", "segfault", "segfault_all", "sigbus", "mpi_failed")
WITHOUT_REASON = ("process_died_unknown", "silent_exit", "launcher_table_only")


def hypotheses(job: Job) -> list[Hypothesis]:
    """All hypotheses, the best first; empty if nothing is wrong."""
    found = _of_failed_attempt(job)
    last = Attempt(job, job.attempts - 1)
    for last_resort in (
        said.failed_saying(last),
        silence.unfinished_start(job),
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
    if not found:
        return [*said.failed_saying(attempt)]
    best = found[0]
    if not best.unknown and best.what not in WITHOUT_REASON:
        explained = said.with_reason(attempt, best) if best.what in _WITH_REASON and best.events else best
        return [explained, *found[1:]]
    statement = [*said.failed_saying(attempt)]
    if not statement or best.what == statement[0].what or _follows(statement[0], best):
        return found
    others = found if best.ranks else found[1:]  # the end of a process that is not named has its reason now
    return [*statement, *others]


def _follows(statement: Hypothesis, death: Hypothesis) -> bool:
    """Whether it was said only after the death."""
    if death.what != "process_died_unknown" or death.unknown or not death.events:
        return False
    end = death.events[0].file, death.events[0].line
    return all((e.file, e.line) > end for e in statement.events)


def _found_host(job: Job, best: Hypothesis) -> str | None:
    """The host of its ranks, else the one that its lines name as the place of what they report."""
    if best.ranks:
        return only({e.host for e in job.events if e.rank in best.ranks and e.host} or job.hosts)
    endings = [e for e in best.events if e.role == "exit" or e.what == "host_oom"]  # a program's words name any host
    return only(place for e in endings if (place := place_in(e.text)))
