"""Builds the answer from what was gathered."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpudoctor.diagnose.causes import COLLECT, text_of_cause
from gpudoctor.diagnose.diagnosis import (
    Cause,
    Confidence,
    Diagnosis,
    EvidenceLine,
    NextStep,
    TimelineEntry,
    Victim,
)
from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.follow import Stall
from gpudoctor.diagnose.gather import GatheredLogs
from gpudoctor.diagnose.infer import first_failed_attempt, hypotheses, recovered
from gpudoctor.diagnose.job import Attempt, Job, clock_skews, is_work
from gpudoctor.diagnose.node_reports import NodeReport, weigh
from gpudoctor.diagnose.rules.model import Hypothesis
from gpudoctor.diagnose.rules.said import failed_saying, lasting, stood_still, unknown_errors
from gpudoctor.diagnose.rules.silence import unfinished_start

_MOST_VICTIMS = 64
_MOST_OTHERS = 5
_MOST_LAST_WORDS = 4
_MOST_TIMELINE = 2000


def diagnose(gathered: GatheredLogs, reports: Iterable[NodeReport] = ()) -> Diagnosis:
    """The best hypothesis, the remaining ones, the victims, and what to do."""
    job = Job(gathered.log, gathered.files, gathered.dumps, gathered.stacks)
    for dump in gathered.dumps:
        gathered.files[dump.file].rank = dump.rank
    healed = recovered(job)
    last = Attempt(job, job.attempts - 1)
    found = [healed] if healed else hypotheses(job)
    for fallback in (failed_saying(last), unfinished_start(job), unknown_errors(job), stood_still(job)):
        found = found or [*fallback]
    answer = Diagnosis(
        verdict="nothing",
        cause=None,
        files=len(gathered.files),
        unread=tuple(gathered.unread),
        world_size=job.world,
        timeline=_timeline(job),
    )
    if not found:
        said = [e for e in lasting(job, job.of("said")) if gathered.files[e.file].like_a_job]
        lines = _evidence(Hypothesis(what="", events=said[:_MOST_LAST_WORDS]), gathered)
        return msgspec.structs.replace(
            answer,
            verdict="unknown" if (doubt := _doubt(job, gathered)) else "nothing",
            reason=doubt or _nothing_reason(job, gathered),
            recognised=gathered.knows_a_line(),
            unexplained=tuple(lines),
        )
    best, confidence, notes = weigh(found[0], list(reports))
    cause = _cause(job, best, confidence, gathered)
    attempt = first_failed_attempt(job) or 0
    return msgspec.structs.replace(
        answer,
        verdict="nothing" if healed else "unknown" if best.unknown else "cause",
        cause=cause,
        others=() if healed else tuple(_others(job, found, best, gathered)),
        victims=() if healed else tuple(_victims(job, attempt, best)),
        collect=COLLECT if best.unknown or confidence == "possible" else (),
        next=tuple(_next_steps(cause, text_of_cause(best.what).checks)),
        reason="; ".join(notes),
        clocks=clock_skews(job, attempt),
        silent_ranks=tuple(sorted(job.members - job.ranks_heard()))[:1024] if job.world and job.ranks_heard() else (),
    )


def stalled(answer: Diagnosis, stall: Stall) -> Diagnosis:
    """The answer for a job that makes no progress: something is wrong, even if no line shows it."""
    if answer.verdict != "nothing":
        return answer
    message = "; ".join(stall.last[:8]) or "no step was seen"
    text = f"no step for {stall.seconds:g} s, and no line says why; last known: {message}"
    cause = Cause("stalled", None, None, None, "possible", text)
    return msgspec.structs.replace(answer, verdict="unknown", cause=cause, collect=COLLECT, reason="")


def _doubt(job: Job, gathered: GatheredLogs) -> str:
    """Why finding nothing proves nothing; empty if the job moved or ended, and all of it was read."""
    if not gathered.files:
        return "no file to read"
    if not gathered.knows_a_line():
        return _nothing_known(gathered)
    if gathered.unread:
        names = ", ".join(each.file for each in gathered.unread[:3]) + (", ..." if len(gathered.unread) > 3 else "")
        return f"nothing in what could be read says that something failed; not read: {names}"
    if not (gathered.dumps or gathered.stacks or any(is_work(e) or e.number("complete") for e in job.events)):
        return (
            "nothing in it says that something failed, and nothing shows that the job moved or ended: one that never "
            "started, or hangs, looks the same"
        )
    return ""


def _nothing_known(gathered: GatheredLogs) -> str:
    """Why no line is of a job: all files are empty, or something else."""
    if not any(file.lines for file in gathered.files) and not gathered.unread:
        return f"{'it is' if len(gathered.files) == 1 else 'they are'} empty: nothing was written there"
    lines = sum(file.lines for file in gathered.files if file.text and not file.like_a_job)
    return (
        f"{f'none of {lines} lines' if lines else 'no line'} is known as output of a training, its launcher or a "
        "kernel: no log of a job; give the job's own output and the logs of its ranks"
    )


def _nothing_reason(job: Job, gathered: GatheredLogs) -> str:
    """What was found instead of a failure; that no end is seen, as a job that hangs has moved before.

    A last line without an end proves no more than one with it: whoever buffers its output writes parts of lines.
    """
    strange = [file for file in gathered.files if file.text and not file.like_a_job]
    text = "nothing in it says that something failed"
    steps = [event for event in job.events if event.role == "progress" and event.number("step") is not None]
    if steps and not job.finished:
        within = steps[-1].number("within")
        # an epoch may come without a step
        last = f"{'step' if within else steps[-1].word('unit') or 'step'} is {within or steps[-1].number('step')}"
        text += f"; its last {last}, no end is seen: if it stands still, diagnose --follow tells"
    if (cut := [file.name for file in gathered.files if file.cut]) and not job.finished:
        text += f"; the last line of {cut[0]} has no end: it is still being written, or the text was cut off"
    return f"{text}; {len(strange)} of {len(gathered.files)} not recognised as logs" if strange else text


def _cause(job: Job, found: Hypothesis, confidence: Confidence, gathered: GatheredLogs) -> Cause:
    return Cause(
        what=found.what,
        rank=found.ranks[0] if found.ranks and found.what == "rank_behind" else found.rank,
        host=found.host,
        gpu=found.gpu,
        confidence=confidence,
        text=found.text,
        evidence=tuple(_evidence(found, gathered)) or _dump_evidence(job, found, gathered),
        ranks=found.ranks,
    )


def _evidence(found: Hypothesis, gathered: GatheredLogs) -> Iterable[EvidenceLine]:
    """The lines of the hypothesis, each once; for the first exception also the statement that raised it."""
    shown: dict[tuple[int, int], Event] = {}
    for event in found.events[:6]:
        shown.setdefault((event.file, event.line), event)
    for number, event in enumerate(shown.values()):
        name = gathered.files[event.file].name
        raised = event.number("raised")
        if number == 0 and raised and not (event.word("raised_text") or "").endswith("("):
            yield EvidenceLine(name, raised, event.word("raised_text") or "")
        yield EvidenceLine(name, event.line, event.text.strip())


def _dump_evidence(job: Job, found: Hypothesis, gathered: GatheredLogs) -> tuple[EvidenceLine, ...]:
    """The dumps of the named ranks, else the first ones; and lines of ranks that waited."""
    shown = [file for file in gathered.files if file.rank is not None and not file.text]
    chosen = [file for file in shown if file.rank in found.ranks] or shown
    waits = Hypothesis(what="", events=job.of("wait")[:2])
    return (*(EvidenceLine(file.name, 0, found.text) for file in chosen[:3]), *_evidence(waits, gathered))


def _others(job: Job, found: list[Hypothesis], best: Hypothesis, gathered: GatheredLogs) -> list[Cause]:
    """The remaining hypotheses of another kind or place, without those that merely follow from the best one."""
    retained: list[Cause] = []
    seen = {(best.what, best.ranks)}
    if len(best.ranks) > 1 and best.what == "rank_behind":
        retained += [_cause(job, _of_rank(best, rank), best.confidence, gathered) for rank in best.ranks[1:]]
    for hypothesis in found[1:]:
        key = (hypothesis.what, hypothesis.ranks)
        if key in seen or hypothesis.unknown or (hypothesis.ranks and set(hypothesis.ranks) <= set(best.ranks)):
            continue
        seen.add(key)
        retained.append(_cause(job, hypothesis, "possible", gathered))
    return retained[:_MOST_OTHERS]


def _of_rank(best: Hypothesis, rank: int) -> Hypothesis:
    return msgspec.structs.replace(best, ranks=(rank,), gpu=None, unknown=False)


def _victims(job: Job, attempt: int, best: Hypothesis) -> Iterable[Victim]:
    reported: set[object] = set()
    proof = {(e.file, e.line) for e in best.events} if not best.unknown else set()
    shown = {e.rank for e in best.events if e.rank is not None} if proof else set()
    for event in job.of("victim", "wait", attempt=attempt):
        key = event.rank if event.rank is not None else (event.host, event.file)
        if event.what == "ib_flushed":  # it follows from an error of the same queue, which may be this process's own
            continue
        if key in reported or len(reported) >= _MOST_VICTIMS or (event.rank is not None and event.rank in best.ranks):
            continue
        if ((event.file, event.line) in proof or event.rank in shown) and best.what not in (
            "rank_hung",
            "rank_behind",
            "node_lost",
        ):
            continue
        reported.add(key)
        name = job.files[event.file].name
        why = "waited for a peer" if event.role == "wait" else "lost the connection to a peer or to the store"
        yield Victim(event.rank, event.host, why, (EvidenceLine(name, event.line, event.text.strip()),))


def _next_steps(cause: Cause, checks: tuple[str, ...]) -> Iterable[NextStep]:
    if checks:
        yield NextStep(f"gpudoctor check {' '.join(checks)}", cause.host, "whether the node itself is fit")
    if cause.what in ("timeout_all_same_seq", "ib_completion_error", "ib_qp_setup_failed", "bootstrap_connect_failed"):
        yield NextStep("gpudoctor cluster check --hosts HOSTS", None, "the network between the nodes, pair by pair")


def _timeline(job: Job) -> tuple[TimelineEntry, ...]:
    shown = [e for e in job.events if e.role not in ("fact", "said", "progress")]
    shown.sort(key=lambda e: (e.attempt, e.time_s is None, e.time_s or 0, e.file, e.line))
    return tuple(
        TimelineEntry(
            _clock(e.time_s),
            e.rank,
            e.host,
            _timeline_word(e),
            job.files[e.file].name,
            e.line,
            e.text.strip()[:200],
        )
        for e in shown[:_MOST_TIMELINE]
    )


def _timeline_word(event: Event) -> str:
    code = event.number("code")
    return f"exit {code}" if event.role == "exit" and code is not None else event.what


def _clock(time_s: float | None) -> str | None:
    if time_s is None:
        return None
    seconds = time_s % 86400
    return f"{int(seconds) // 3600:02d}:{int(seconds) // 60 % 60:02d}:{seconds % 60:06.3f}"
