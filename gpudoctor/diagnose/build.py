"""Builds the answer from what was gathered."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpudoctor.diagnose.causes import COLLECT, text_of_cause
from gpudoctor.diagnose.diagnosis import (
    AlsoSaid,
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
from gpudoctor.diagnose.infer import WITHOUT_REASON, hypotheses
from gpudoctor.diagnose.job import Attempt, Job, clock_skews, is_work
from gpudoctor.diagnose.mentioned import mentioned_in
from gpudoctor.diagnose.node_reports import NodeReport, weigh
from gpudoctor.diagnose.rules.attempts import first_failed_attempt, recovered
from gpudoctor.diagnose.rules.direct import kind_of_failure
from gpudoctor.diagnose.rules.model import Hypothesis, words_of
from gpudoctor.diagnose.rules.said import lasting
from gpudoctor.lazy import lazy_pattern
from gpudoctor.text.grouped import grouped

_MOST_VICTIMS = 64
_NOT_OF_THE_SPEAKER = ("rank_hung", "rank_behind", "node_lost")  # of others, whom they wait for
_MOST_OTHERS = 5
_MOST_LAST_WORDS = 4
_MOST_ALSO = 4
_MOST_TIMELINE = 2000
_LEARNS_NOTHING = lazy_pattern(
    r"(?i)(?=.{0,400}\bloss['\"]?\s?[:=]\s?0\.0+(?!\d))(?=.{0,400}\bgrad_norm['\"]?\s?[:=]\s?0\.0+(?!\d))"
)
_STEPS_OF_NOTHING = 5  # one step without a gradient is usual in reinforcement learning


def diagnose(gathered: GatheredLogs, reports: Iterable[NodeReport] = ()) -> Diagnosis:
    """The best hypothesis, the remaining ones, the victims, and what to do."""
    job = Job(gathered.log, gathered.files, gathered.dumps, gathered.stacks)
    for dump in gathered.dumps:
        gathered.files[dump.file].rank = dump.rank
    healed = recovered(job)
    found = [healed] if healed else hypotheses(job)
    answer = _explained(job, found, [*reports]) if found else _nothing_found(job, gathered)
    if healed:
        answer = msgspec.structs.replace(answer, verdict="nothing", others=(), victims=())
    return msgspec.structs.replace(
        answer, files=len(job.files), unread=tuple(gathered.unread), world_size=job.world, timeline=_timeline(job)
    )


def _nothing_found(job: Job, gathered: GatheredLogs) -> Diagnosis:
    statements = [e for e in lasting(job, job.of("said")) if job.files[e.file].like_a_job]
    doubt = _doubt(job, gathered)
    return Diagnosis(
        verdict="unknown" if doubt else "nothing",
        cause=None,
        reason=doubt or _nothing_reason(job),
        recognised=gathered.knows_a_line(),
        unexplained=_evidence(job, statements[:_MOST_LAST_WORDS]),
    )


def _explained(job: Job, found: list[Hypothesis], reports: list[NodeReport]) -> Diagnosis:
    best, confidence, notes = weigh(found[0], reports)
    cause = _cause(job, best, confidence)
    attempt = first_failed_attempt(job) or 0
    others = _others(job, found, best)
    victims = tuple(_victims(job, attempt, best))
    evidence = [each.evidence for each in (cause, *others)] + [victim.evidence for victim in victims]
    shown = {(line.file, line.line) for each in evidence for line in each}
    hurt = {victim.rank for victim in victims if victim.rank is not None}
    doubtful = best.unknown or confidence == "possible"
    return Diagnosis(
        verdict="unknown" if best.unknown else "cause",
        cause=cause,
        others=tuple(others),
        also=() if doubtful else _also(Attempt(job, attempt), [best, *found[1:]], shown, hurt),
        victims=victims,
        collect=COLLECT if doubtful else (),
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
    steps = [e for e in job.events if is_work(e)][-_STEPS_OF_NOTHING:]
    if len(steps) == _STEPS_OF_NOTHING and all(_LEARNS_NOTHING.match(e.text) for e in steps):
        return (
            f"loss and gradient are 0 in the last {_STEPS_OF_NOTHING} steps of it: the job moves and learns nothing; "
            "look at data, labels and precision"
        )
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
        "kernel: no log of a job; give the job's own output and the logs of its ranks. What tools print of a node is "
        "for gpudoctor check --node FILE"
    )


def _nothing_reason(job: Job) -> str:
    """What was found instead of a failure; that no end is seen, as a job that hangs has moved before.

    A last line without an end proves no more than one with it: whoever buffers its output writes parts of lines.
    """
    strange = [file for file in job.files if file.text and not file.like_a_job]
    text = "nothing in it says that something failed"
    steps = [event for event in job.events if event.role == "progress" and event.number("step") is not None]
    if steps and not job.finished:
        within = steps[-1].number("within")
        # an epoch may come without a step
        last = f"{'step' if within else steps[-1].word('unit') or 'step'} is {within or steps[-1].number('step')}"
        text += f"; its last {last}, no end is seen: if it stands still, diagnose --follow tells"
    if (cut := [file.name for file in job.files if file.cut]) and not job.finished:
        text += f"; the last line of {cut[0]} has no end: it is still being written, or the text was cut off"
    return f"{text}; {len(strange)} of {len(job.files)} not recognised as logs" if strange else text


def _cause(job: Job, found: Hypothesis, confidence: Confidence) -> Cause:
    return Cause(
        what=found.what,
        rank=found.ranks[0] if found.ranks and found.what == "rank_behind" else found.rank,
        host=found.host,
        gpu=found.gpu,
        confidence=confidence,
        text=found.text,
        evidence=_evidence(job, found.events[:6]) or _dump_evidence(job, found),
        ranks=found.ranks,
        mentioned=None if found.ranks or found.host or found.gpu else mentioned_in(found.events),
    )


def _evidence(job: Job, events: Iterable[Event]) -> tuple[EvidenceLine, ...]:
    """The line of each event, each once; for the first exception also the statement that raised it."""
    lines: list[EvidenceLine] = []
    for event, *_ in grouped(((event.file, event.line), event) for event in events).values():
        name = job.files[event.file].name
        raised, source = event.number("raised"), event.word("raised_text") or ""
        if not lines and raised and not source.endswith("("):
            lines.append(EvidenceLine(name, raised, source))
        lines.append(EvidenceLine(name, event.line, event.text.strip()))
    return tuple(lines)


def _dump_evidence(job: Job, found: Hypothesis) -> tuple[EvidenceLine, ...]:
    """The dumps of the named ranks, else the first ones; and lines of ranks that waited."""
    shown = [file for file in job.files if file.rank is not None and not file.text]
    chosen = [file for file in shown if file.rank in found.ranks] or shown
    return (*(EvidenceLine(file.name, 0, found.text) for file in chosen[:3]), *_evidence(job, job.of("wait")[:2]))


def _others(job: Job, found: list[Hypothesis], best: Hypothesis) -> list[Cause]:
    """The remaining hypotheses of another kind or place, those of other ranks that are behind first."""
    behind = best.ranks[1:] if best.what == "rank_behind" else ()
    retained = [_cause(job, msgspec.structs.replace(best, ranks=(r,), gpu=None), best.confidence) for r in behind]
    seen = {(best.what, best.ranks)}
    for other in found[1:]:
        if (other.what, other.ranks) not in seen and not _adds_nothing(other, best):
            seen.add((other.what, other.ranks))
            retained.append(_cause(job, other, "possible"))
    return retained[:_MOST_OTHERS]


def _adds_nothing(other: Hypothesis, best: Hypothesis) -> bool:
    """Whether it is no alternative: unknown, of the same ranks, of nobody's end, or beside what is certain.

    Beside that stands only what is as certain, and at another place.
    """
    if other.unknown:
        return True
    if best.confidence == "certain" and not (other.confidence == "certain" and _is_elsewhere(other, best)):
        return True
    if other.ranks:
        return {*other.ranks} <= {*best.ranks}
    return not best.unknown and other.what in (*WITHOUT_REASON, "killed_sigkill")


def _is_elsewhere(other: Hypothesis, best: Hypothesis) -> bool:
    """Whether both name ranks, hosts or GPUs, and this one others."""
    if other.ranks and best.ranks:
        return not {*other.ranks} <= {*best.ranks}
    pairs = (
        ({e.host for e in other.events}, {e.host for e in best.events}),
        ({e.gpu for e in other.events}, {e.gpu for e in best.events}),
    )
    return any(None not in of_other | of_best and not of_other <= of_best for of_other, of_best in pairs)


def _also(
    attempt: Attempt, found: list[Hypothesis], shown: set[tuple[str, int]], hurt: set[int]
) -> tuple[AlsoSaid, ...]:
    """The first line of each other kind of failure; not what is shown, and not what victims say after the cause."""
    job, best = attempt.job, found[0]
    first = min(((e.file, e.line) for e in best.events), default=(-1, 0))

    def before(event: Event) -> bool:
        return event.file == first[0] and event.line < first[1]

    failures = [(e.what, e) for e in _failures_named(attempt) if before(e) or e.rank not in hurt]
    failures += [(h.what, h.events[0]) for h in found[1:] if h.events and h.confidence == "certain" and not h.unknown]
    failures.sort(key=lambda each: (each[1].file, each[1].line))
    # events of one kind, such as Xids, may be of several
    of_kinds = grouped((kind_of_failure(e) if e.what == what else what, (what, e)) for what, e in failures)
    known = {best.what} | {kind_of_failure(e) for e in best.events}
    other = [first_one for kind, (first_one, *_) in of_kinds.items() if kind not in known]
    other = [(what, e) for what, e in other if (job.files[e.file].name, e.line) not in shown]
    other.sort(key=lambda each: (not before(each[1]), each[1].role != "cause", each[1].file, each[1].line))
    return tuple(
        AlsoSaid(what, job.files[e.file].name, e.line, words_of(e), before(e))
        for what, e in sorted(other[:_MOST_ALSO], key=lambda each: (each[1].file, each[1].line))
    )


def _failures_named(attempt: Attempt) -> list[Event]:
    """What says by itself which kind of failure it is, and lasts."""
    named = [e for e in attempt.of("cause", "echo") if e.what not in WITHOUT_REASON and not e.detail.get("warning")]
    named += [e for e in attempt.of("wrapper") if e.what.startswith("nccl_")]  # all others point at another line
    return lasting(attempt.job, named)


def _victims(job: Job, attempt: int, best: Hypothesis) -> Iterable[Victim]:
    """Who only waited or lost a peer, each once; not those whose own words show the cause."""
    proof = best.events if not best.unknown and best.what not in _NOT_OF_THE_SPEAKER else []
    speakers = {e.rank for e in proof if e.rank is not None} | {*best.ranks}
    lines = {(e.file, e.line) for e in proof}
    reported: set[object] = set()
    for event in job.of("victim", "wait", attempt=attempt):
        key = event.rank if event.rank is not None else (event.host, event.file)
        # what was flushed follows from an error of the same queue, which may be this process's own
        if event.what == "ib_flushed" or event.rank in speakers or (event.file, event.line) in lines or key in reported:
            continue
        reported.add(key)
        why = "waited for a peer" if event.role == "wait" else "lost the connection to a peer or to the store"
        yield Victim(event.rank, event.host, why, _evidence(job, [event]))
        if len(reported) >= _MOST_VICTIMS:
            return


def _next_steps(cause: Cause, checks: tuple[str, ...]) -> Iterable[NextStep]:
    if checks:
        yield NextStep(f"gpudoctor check {' '.join(checks)}", cause.host, "whether the node itself is fit")
    if cause.what in ("timeout_all_same_seq", "ib_completion_error", "ib_qp_setup_failed", "bootstrap_connect_failed"):
        yield NextStep("gpudoctor cluster check --hosts HOSTS", None, "the network between the nodes, pair by pair")


def _timeline(job: Job) -> tuple[TimelineEntry, ...]:
    shown = [e for e in job.events if e.role not in ("fact", "said", "progress")]
    shown.sort(key=lambda e: (e.attempt, e.time_s is None, e.time_s or 0, e.file, e.line))
    return tuple(
        TimelineEntry(_clock(e.time_s), e.rank, e.host, what, job.files[e.file].name, e.line, e.text.strip()[:200])
        for e in shown[:_MOST_TIMELINE]
        if (what := f"exit {e.number('code')}" if e.role == "exit" and "code" in e.detail else e.what)
    )


def _clock(time_s: float | None) -> str | None:
    if time_s is None:
        return None
    seconds = time_s % 86400
    return f"{int(seconds) // 3600:02d}:{int(seconds) // 60 % 60:02d}:{seconds % 60:06.3f}"
