"""run.host: how much of the step is spent by code of the loop that is neither data nor training?"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from gpudoctor.checks.core.case import Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.run.findings.balance import evidence_of, expected_ratio, subject_of
from gpudoctor.run.findings.run_check import run_check
from gpudoctor.run.findings.slow_ranks import LIMITS, compared, ranks_with_shares, share_of_steps
from gpudoctor.run.observer.layout import HOST
from gpudoctor.run.watched import Watched

_SHARE = Limit(0.20, "of the step", "gpudoctor's own choice: a fifth of the time is worth a change", name="share_warn")
_ADVICE = (
    Advice("Log, print, save and compute metrics less often, or on another thread; look at the line in the evidence."),
)


@run_check("run.host", title="The loop spends its time on training", limits=(*LIMITS, _SHARE))
def host(watched: Watched) -> Iterator[Finding]:
    """Name a rank that is held up outside of data and training, or report that all ranks are."""
    ranks = ranks_with_shares(watched)
    if not ranks:
        yield skip(NODE, "too few or too short steps to judge")
        return
    named = [each for each in compared(watched).slow if each.cause == "host"]
    for slow in named:
        text = (
            f"makes the others wait: it spends {slow.own_ms:.1f} ms a step on the host outside of data and training, "
            f"the others {slow.usual_ms:.1f} ms"
        )
        yield warn(
            subject_of(watched, slow.rank),
            Found(text, round(slow.ratio, 3), "ratio"),
            expected_ratio(),
            *evidence_of(watched, slow),
            likely="host time: code of its loop between the optimizer and the next forward",
            advice=_ADVICE,
        )
    if named:
        return
    share = fmean(share_of_steps(rank, HOST) for rank in ranks)
    found = Found(f"{share:.0%} of the step is host time outside of data and training", round(share, 4), "share")
    expected = Expected(f"at most {_SHARE.value:.0%}", "<=", _SHARE.value, "share", _SHARE.source)
    if share <= _SHARE.value:
        yield ok(NODE, found, expected)
        return
    places = [place for rank in ranks for place in rank.places if place.phase == "host"]
    shown = (Evidence("code", max(places, key=lambda place: place.count).text),) if places else ()
    loader = any(rank.loader for rank in ranks)
    likely = (
        "code of the loop outside of data and training"
        if loader
        else "getting batches (there is no DataLoader), or logging"
    )
    yield warn(NODE, found, expected, *shown, likely=likely, advice=_ADVICE)
