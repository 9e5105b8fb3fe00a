"""What programs said in words that no table knows: the tier under all others, and the reasons of deaths.

A statement counts by its form and class alone. The first one that nothing outlived is quoted whole: what stands below
it is mostly its consequence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.job import Attempt, Job, is_work
from gpudoctor.diagnose.patterns.exceptions import exception_event
from gpudoctor.diagnose.rules.model import Hypothesis, at_events, host_of, only_rank, ranks_of, undecided
from gpudoctor.diagnose.rules.silence import ended_before
from gpudoctor.statements.prefixes import seconds_between
from gpudoctor.text.units import rounded_duration_text

_OWN_KINDS = ("cause", "resource", "network")
_FORMS = ("exception", "program", "death", "level", "event", "errno")
_MOST_LINES_AFTER = 40  # whatever a program goes on to say for longer, it survived
_NEAR = 4
# how long a step takes: of Megatron, NeMo and trainers; of a bar
_STEP_TIME = re.compile(
    r"(?i)(?:time per iteration|(?:iter(?:ation)?|step)[ _-]?tim(?:e|ing))(?: in)?[ :=\"'(]{0,3}(?:(?P<unit>m?s)\b)?"
    r"[ :=\"')]{1,4}(?P<time>\d{1,8}(?:\.\d{1,9})?)|(?<![\d.])(?P<bar>\d{1,8}(?:\.\d{1,3})?) ?s/(?:it|step|iter)\b"
)
_LAST_OF_ALL = re.compile(r"\b(\d{1,9})\s{0,12}/\s{0,12}\1\b")  # step 29/29
_LEAST_QUIET_S = 6000.0  # an epoch, a save or an hourly line is shorter
_TIMES_SEEN, _TIMES_PRINTED = 10, 50  # a step's time may be printed at every tenth step alone
_A_YEAR = 2023  # of months as they are in most years
_NUMBERS = re.compile(r"\d+")
_NO_RULE = "it looks like an error, no rule knows it, and nothing after it shows that the job went on"
# what an error tells by its class alone, if no rule knows its words
_BY_CLASS = {
    "peer": "a connection was closed by the other end, whose own words are not in this text",
    "wait": "somebody was waited for in vain; who, and why, is not in this text",
}


def failed_saying(attempt: Attempt) -> Iterator[Hypothesis]:
    """The first statement of a cause of its own that nothing outlived, quoted whole."""
    statements = lasting(attempt.job, attempt.of("said"))
    own = _of_kinds(statements, _OWN_KINDS)
    reports = _fatal(attempt, own) or _before_a_cut(statements, own)
    died = _fatal(attempt, [e for e in statements if e.what == "death"])
    if died and all((e.file, e.line) > (died[0].file, died[0].line) for e in reports):
        # what the others said then follows from it
        text = f"{_message(died[0]).rstrip('.')}; why is not in this text: killed, or crashed in native code"
        yield at_events("process_died_unknown", text, died)
    elif reports:
        first = _first_of_one_clock(reports)
        alike = [e for e in reports if _kind(e) == _kind(first)]
        before = _just_before(first, [*(e for e in own if not _is_loud(e)), *_of_kinds(statements, ("wait",))])[-1:]
        known = _just_before(first, attempt.of("echo"))[-1:]  # it warned why, then it failed
        yield Hypothesis(
            known[0].what if known else _label(first),
            "; before it: ".join(_message(e) for e in (first, *before)),
            [*known, *before, first, *[e for e in reports if e not in alike][:2]],
            "likely" if first.word("form") in ("program", "death") else "possible",
            only_rank(ranks_of(alike)),
            host_of(alike),
        )


def _of_kinds(statements: list[Event], kinds: tuple[str, ...]) -> list[Event]:
    """Those of these classes whose form shows that a program speaks."""
    return [e for e in statements if e.what in kinds and e.word("form") in _FORMS]


def _fatal(attempt: Attempt, statements: list[Event]) -> list[Event]:
    """The loud ones that the job ended with."""
    return [e for e in statements if _is_loud(e) and _ended_it(attempt, e)]


def _before_a_cut(statements: list[Event], own: list[Event]) -> list[Event]:
    """What stands right before a traceback whose exception is cut off."""
    cut_off = [e for e in statements if e.what == "wrapper" and e.word("message") is None]
    return [e for cut in cut_off for e in _just_before(cut, own)]


def _first_of_one_clock(reports: list[Event]) -> Event:
    """The first in the text, or the earliest of its host, whose times are of one clock."""
    first = min(reports, key=lambda e: (e.file, e.line))
    if first.time_s is None:
        return first
    with_time = [e for e in reports if e.time_s is not None and e.host == first.host]
    return min(with_time, key=lambda e: (e.time_s or 0, e.file, e.line))


def with_reason(attempt: Attempt, found: Hypothesis) -> Hypothesis:
    """The death of one process with what it said before, or the failed start with what was said right before."""
    statements = [e for e in lasting(attempt.job, attempt.of("said")) if e.what in _OWN_KINDS and _is_loud(e)]
    if end := next((e for e in found.events if e.role == "exit"), None):
        before = [e for e in statements if _same_process(e, end)][:1]
    else:
        before = _just_before(found.events[0], _fatal(attempt, _of_kinds(statements, _OWN_KINDS)))[-1:]
    if before:
        found.text += f"; before {'that it said' if end else 'it'}: {_message(before[0])}"
        found.events = [*found.events[:3], *before] if end else [*before, *found.events[:3]]
    return found


def unknown_errors(job: Job) -> Iterator[Hypothesis]:
    """The first lines that look like an error, if no rule explains any line; not those behind the end of the job."""
    events = [e for e in lasting(job, job.of("said")) if _is_loud(e) and not ended_before(job, e)]
    events = [e for e in events if e.word("message")] or events  # a frame of a traceback that is cut off has none
    if events := [e for e in events if not _introduces(e)] or events:
        text = f"{_message(events[0]).rstrip('.')}: {_BY_CLASS.get(events[0].what, _NO_RULE)}"
        yield undecided("unknown_error", text, events, host=host_of(events))


def stood_still(job: Job) -> Iterator[Hypothesis]:
    """The same line again and again at the end of a log, and no work between."""
    done = {e.file for e in job.of("done")}
    if events := [e for e in job.of("fact", what="repeated") if e.file not in done]:
        times, line = events[0].number("times"), events[0].text.strip()
        text = f"the log ends with the same line {times} times, and nothing moves between: {line}"
        yield undecided("stalled", text, events, host=host_of(events))


def only_heartbeats(job: Job) -> Iterator[Hypothesis]:
    """Lines that tell only of the time, for much longer than a step takes after the last step of the job."""
    steps, beats = job.of("progress"), job.of("fact", what="heartbeat")
    if job.finished or not beats or {e.file for e in steps} != {beats[0].file} or _LAST_OF_ALL.search(steps[-1].text):
        return
    first_s, last_s = beats[0].number("first_s") or 0, beats[0].time_s or 0
    quiet_s = seconds_between(first_s, last_s, _A_YEAR) or 0
    seen_s = max(e.number("longest_step_s") or 0 for e in steps)
    step_s = seen_s or _printed_step_s(steps)
    longest_s = max(_LEAST_QUIET_S, step_s * (_TIMES_SEEN if seen_s else _TIMES_PRINTED))
    if step_s and quiet_s > longest_s and first_s >= (steps[-1].time_s or 0) - 1:  # else it is another text
        text = f"no step for {rounded_duration_text(quiet_s)}, though one takes {rounded_duration_text(step_s)}"
        yield undecided("stalled", f"{text}: only lines such as this one came: {beats[0].text}", [steps[-1], *beats])


def _printed_step_s(steps: list[Event]) -> float:
    """The longest time of a step that these lines print, in s; 0 if they print none."""
    printed = [found for e in steps if (found := _STEP_TIME.search(e.text))]
    return max(
        (float(found["time"] or found["bar"]) / (1000 if found["unit"] == "ms" else 1) for found in printed), default=0
    )


def lasting(job: Job, statements: list[Event]) -> list[Event]:
    """The statements that the job did not outlive."""
    return [e for e in statements if not _outlived(job, e)]


def _outlived(job: Job, event: Event) -> bool:
    """Whether work went on after it; a bar is drawn once more when an exception ends its program."""
    raised = event.word("form") in ("exception", "death")
    for other in job.events:
        if other.file != event.file or other.line <= event.line:
            continue
        if is_work(other) and not other.detail.get("one_word") and not (raised and other.what == "work"):
            return True
        if other.what == "comm_rank" and "Call to connect" in event.text:
            return True
        if other.number("complete") and "NCCL " in event.text and other.pid == event.pid:  # NCCL went on
            return True
    return False


def _ended_it(attempt: Attempt, event: Event) -> bool:
    """Whether the statement is near the end, or an end follows it: not the end of a start that went on."""
    job = attempt.job
    if ended_before(job, event):
        return False
    if job.files[event.file].lines - event.line <= _MOST_LINES_AFTER:
        return True
    ends = job.of("exit", "ending", "closed", "wrapper", attempt=event.attempt)
    return any(e.file != event.file or event.line < e.line <= event.line + 4 * _MOST_LINES_AFTER for e in ends)


def _message(event: Event) -> str:
    message, frame = event.word("message") or event.text.strip(), event.word("frame")
    return f"{message} (raised from {frame})" if frame else message


def _is_loud(event: Event) -> bool:
    return event.word("severity") != "warning"


def _introduces(event: Event) -> bool:
    """Whether it is prose that ends in a colon: another statement says more."""
    return event.word("form") == "sentence" and event.text.rstrip().endswith(":")


def _just_before(first: Event, events: list[Event]) -> list[Event]:
    """Those of the events that the same process wrote right before."""
    near = [e for e in events if e.file == first.file and 0 < first.line - e.line <= _NEAR]
    return sorted((e for e in near if (e.rank, e.pid) == (first.rank, first.pid)), key=lambda e: e.line)


def _same_process(event: Event, end: Event) -> bool:
    if event.file != end.file or event.line >= end.line:
        return False
    if end.rank is not None:
        return event.rank == end.rank
    return end.pid is not None and event.pid == end.pid


def _label(event: Event) -> str:
    if event.word("form") == "exception":
        raised = exception_event(event.word("message") or event.text)
        return raised.what if raised.role == "cause" else "failed_saying"
    return "failed_saying"


def _kind(event: Event) -> str:
    return _NUMBERS.sub("0", event.word("message") or event.text)[:120]
