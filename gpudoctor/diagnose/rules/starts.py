"""Jobs that stand in their start without an error: the last thing logged is a step that not all processes ended."""

from __future__ import annotations

from collections import Counter

from gpudoctor.diagnose.events import TROUBLE, Event
from gpudoctor.diagnose.job import Job
from gpudoctor.diagnose.rules.model import Hypothesis, host_of, named

_MOST_LINES_AFTER = 20  # a log that goes on for longer shows that the start did
_SIGNS_OF_MORE = ("exit", "closed", "ending", "wrapper", "progress", "done", *TROUBLE)


def unfinished_start(job: Job) -> list[Hypothesis]:
    """The step of the start that was begun last and never ended, and who is missing in it.

    Nothing, if any line shows work, an error or an end: other rules read those.
    """
    if any(e.role in _SIGNS_OF_MORE or e.what == "work" for e in job.events):
        return []
    begun = [e for e in job.events if e.what == "begins" and not _ended(job, e)]
    last = [e for e in begun if job.files[e.file].lines - e.line <= _MOST_LINES_AFTER]
    if not last:
        return []
    step = last[-1].word("step") or ""
    told = [e for e in begun if (e.word("step"), e.word("group")) == (step, last[-1].word("group"))]
    came = Counter(e.rank for e in told if e.rank is not None)
    if 0 not in came and last[-1].detail.get("rank_0_ends"):  # another node's log may have its end
        return []
    world = max((e.number("world") or 0 for e in told), default=0) or job.world or 0
    missing = sorted(set(range(world)) - set(came)) if came else []
    twice = sorted(rank for rank, times in came.items() if times > 1)
    text = f"the last thing logged is {step}, and nothing shows that it ended"
    if missing and twice:
        text += (
            f": {named(twice)} of {world} came more than once, {named(missing)} never: several nodes count the same "
            "ranks (the node's rank, or the launcher's tasks, were not passed on)"
        )
    elif missing:
        text += f": {named(missing)} of {world} never came to it"
    elif came and world:
        text += f", although all {world} ranks came to it: they do not reach each other, or one hangs in it"
    return [
        Hypothesis(
            what="init_hang",
            host=host_of(told),
            confidence="likely" if missing and twice else "possible",
            unknown=not (missing and twice),
            events=[*told[:3], last[-1]] if last[-1] not in told[:3] else told[:3],
            text=text,
        )
    ]


def _ended(job: Job, begins: Event) -> bool:
    """Whether some writer logged the end of this step; those of one communicator end together."""
    key = (begins.word("step"), begins.word("group"))
    return any(
        e.what == "begun"
        and (e.word("step"), e.word("group")) == key
        and (e.file != begins.file or e.line > begins.line)
        for e in job.events
    )
