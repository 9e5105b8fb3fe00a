"""run.batch: do all ranks get equally large batches?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.run.findings.balance import evidence_of, makes_others_wait, subject_of
from gpudoctor.run.findings.run_check import run_check
from gpudoctor.run.findings.slow_ranks import LAST_IN_SHARE, LIMITS, SlowRank, compared
from gpudoctor.run.observer.layout import WAIT
from gpudoctor.run.step_series import TimedStep
from gpudoctor.run.watched import Watched, WatchedRank

_UNEVEN = Limit(
    1.15,
    "largest over mean, average of steps",
    "gpudoctor's own choice: that much of a step is waited",
    name="uneven_warn",
)
_WAIT_SHARE = Limit(0.10, "of the step", "gpudoctor's own choice: below, there is little to gain", name="wait_share")
_ADVICE = (Advice("Give all ranks batches of equal size: sort or bucket by length, pack, or limit by tokens."),)


@run_check("run.batch", title="All ranks get equally large batches", limits=(*LIMITS, _UNEVEN, _WAIT_SHARE))
def batch(watched: Watched) -> Iterator[Finding]:
    """Name a rank whose batches are larger, or report batches of which now one, now another rank has the largest."""
    ranks = [rank for rank in watched.ranks if rank.steps and any(step.elements for step in rank.steps)]
    if len(ranks) < 2:
        yield skip(NODE, "no sizes of inputs of two ranks: nothing to compare")
        return
    named = [each for each in compared(watched).slow if each.cause == "batch"]
    for slow in named:
        yield _larger(watched, slow, [rank for rank in ranks if rank is not slow.rank])
    if not named:
        yield _uneven(watched, ranks)


def _larger(watched: Watched, slow: SlowRank, others: Sequence[WatchedRank]) -> Finding:
    elements = fmean(step.elements for step in slow.rank.steps)
    rows = fmean(step.rows for step in slow.rank.steps)
    usual = fmean(fmean(step.elements for step in rank.steps) for rank in others)
    usual_rows = fmean(fmean(step.rows for step in rank.steps) for rank in others)
    text = (
        f"its batches are {elements / usual:.2f} x as large as theirs, its compute takes "
        f"{slow.own_ms:.1f} ms {slow.often}, theirs {slow.usual_ms:.1f} ms"
    )
    sizes = Evidence(
        "first input", f"{rows:.1f} rows, {elements:.0f} elements a step; others {usual_rows:.1f}, {usual:.0f}"
    )
    shown = (sizes, *evidence_of(watched, slow))
    likely = "uneven batches: this rank gets more to compute than the others"
    return makes_others_wait(watched, slow, text, shown, likely, *_ADVICE, ratio=elements / usual)


def _uneven(watched: Watched, ranks: Sequence[WatchedRank]) -> Finding:
    per_step = list(zip(*(rank.steps for rank in ranks), strict=True))
    ratios = [
        max(step.elements for step in steps) / fmean(step.elements for step in steps)
        for steps in per_step
        if all(step.elements for step in steps)
    ]
    uneven = fmean(ratios) if ratios else 1.0
    wait = fmean(step.wall_ms[WAIT] / step.step_ms for steps in per_step for step in steps if step.step_ms)
    found = Found(f"the largest batch of a step has {uneven:.2f} x the mean size", round(uneven, 3), "ratio")
    expected = Expected(f"at most {_UNEVEN.value:g} x", "<=", _UNEVEN.value, "ratio", _UNEVEN.source)
    if uneven <= _UNEVEN.value or wait <= _WAIT_SHARE.value:
        return ok(NODE, found, expected)
    index = _always_largest(per_step)
    whose = "now one, now another rank has" if index is None else f"rank {ranks[index].rank} has"
    text = f"uneven batches: {whose} the largest; the ranks wait {wait:.0%} of the time"
    subject = NODE if index is None else subject_of(watched, ranks[index])
    return warn(subject, found, expected, likely=text, advice=_ADVICE)


def _always_largest(per_step: Sequence[Sequence[TimedStep]]) -> int | None:
    """The place of the rank whose batch alone is the largest in nearly all steps."""
    alone: Counter[int] = Counter()
    for steps in per_step:
        sizes = [step.elements for step in steps]
        if sizes.count(max(sizes)) == 1:
            alone[sizes.index(max(sizes))] += 1
    return next((index for index, turns in alone.items() if turns >= LAST_IN_SHARE.value * len(per_step)), None)
