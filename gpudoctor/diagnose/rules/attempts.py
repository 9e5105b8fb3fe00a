"""Which attempt failed first, and whether the job went on after it."""

from __future__ import annotations

import re
from signal import SIGKILL

from gpudoctor.diagnose.events import TROUBLE, Event, only
from gpudoctor.diagnose.job import Attempt, Job, is_work
from gpudoctor.diagnose.places import REQUEUED, steps_of
from gpudoctor.diagnose.rules import outside, silence
from gpudoctor.diagnose.rules.ends import NO_FAILURE_OF_ITS_OWN
from gpudoctor.diagnose.rules.model import Hypothesis, host_of, only_rank, ranks_of

_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){0,8}(?:[A-Z]\w{0,60})?(?:Error|Exception): ")
# the programs of Slurm, or a step by its number
_OF_SLURM = re.compile(r"\b(?:slurmstepd|srun)\b|\bStepId=")
_OF_A_GPU = ("gpu_lost", "gpu_ecc", "gpu_xid", "nvlink_failed", "wrong_results")
_FATAL = ("exit", "ending", "wait", "stuck", "victim", "wrapper", "closed")


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
    return any((e.number("code") or 0) not in (*NO_FAILURE_OF_ITS_OWN, -SIGKILL) for e in exits)


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
    return all(_work_follows(job, [e for e in troubles if e.file == file]) for file in {e.file for e in troubles})


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


def _work_follows(job: Job, troubles: list[Event]) -> bool:
    """Whether enough work follows on all troubles of one file."""
    last = max(e.line for e in troubles)
    raised = any(e.detail.get("traceback") for e in troubles)
    # every bar is drawn once more when an exception ends its program; what a broken GPU computes is no proof
    bars_count = not raised and not any(e.what in _OF_A_GPU or _EXCEPTION.match(e.text) for e in troubles)
    words_count = not raised and not any(e.role == "cause" and e.strength >= 2 for e in troubles)

    def is_proof(e: Event) -> bool:
        return is_work(e) and (bars_count or e.what != "work") and (words_count or not e.detail.get("one_word"))

    after = [e for e in job.events if e.file == troubles[0].file and e.line > last and is_proof(e)]
    ended_well = any(e.role == "done" or e.what == "unstuck" for e in after)
    return ended_well or (len(after) >= 3 and not any(_ended_a_step(job, e) for e in troubles))


def _ended_a_step(job: Job, trouble: Event) -> bool:
    """Whether Slurm tells of memory, as it does when a step has ended: what works behind is then another step.

    Not if the job had not begun or had reported its end before, nor if it resumes behind, near the step where it was,
    and goes further: an evaluation loads a checkpoint too, and counts from the start.
    """
    if trouble.what != "host_oom" or not _OF_SLURM.search(trouble.text) or silence.ended_before(job, trouble):
        return False
    of_file = [e for e in job.events if e.file == trouble.file]
    before = [e for e in of_file if e.line < trouble.line]
    behind = [e for e in of_file if e.line > trouble.line]
    resumed = any(e.what == "resumed" for e in behind)
    reached, steps = max(steps_of(before), default=0), steps_of(behind)
    goes_further = bool(steps) and steps[0] > reached / 2 and max(steps) > reached
    return any(map(is_work, before)) and not (resumed and goes_further)
