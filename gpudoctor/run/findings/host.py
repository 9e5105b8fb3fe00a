"""run.host: how much of the step is spent by code of the loop that is neither data nor training?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.finding import Advice, Evidence, Finding, Found, skip, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.run.findings.balance import evidence_of, look_at_line, makes_others_wait
from gpudoctor.run.findings.run_check import run_check
from gpudoctor.run.findings.shares import (
    SHARE_LIMITS,
    expected_share,
    judged_small,
    ranks_with_shares,
    share_of_steps,
)
from gpudoctor.run.findings.slow_ranks import LIMITS, compared
from gpudoctor.run.observer.layout import HOST
from gpudoctor.run.watched import Watched

_LESS = "Log, print, save and compute metrics less often, or on another thread"


@run_check("run.host", title="The loop spends its time on training", limits=(*LIMITS, *SHARE_LIMITS))
def host(watched: Watched) -> Iterator[Finding]:
    """Name a rank that is held up outside of data and training, or report that all ranks are."""
    ranks = ranks_with_shares(watched)
    if not ranks:
        yield skip(NODE, "too few steps to judge")
        return
    named = [each for each in compared(watched).slow if each.cause == "host"]
    for slow in named:
        outside = f"{slow.often} on the host outside of data and training"
        text = f"it spends {slow.own_ms:.1f} ms {outside}, the others {slow.usual_ms:.1f} ms"
        likely = "host time: code of its loop between the optimizer and the next forward"
        advice = Advice(look_at_line(slow, _LESS))
        yield makes_others_wait(watched, slow, text, evidence_of(watched, slow), likely, advice)
    if named:
        return
    share = share_of_steps(ranks, HOST)
    text = f"{share.text} is host time outside of data and training ({share.cost})"
    found = Found(text, round(share.part, 4), "share")
    if (judged := judged_small(share, found)) is not None:
        yield judged
        return
    places = [place for rank in ranks for place in rank.places if place.phase == "host"]
    shown = (Evidence("code", max(places, key=lambda place: place.count).text),) if places else ()
    line = ": look at the line of code in the evidence" if places else ""
    loader = any(rank.loader for rank in ranks)
    likely = (
        "code of the loop outside of data and training"
        if loader
        else "getting batches (there is no DataLoader), or logging"
    )
    yield warn(NODE, found, expected_share(), *shown, likely=likely, advice=(Advice(f"{_LESS}{line}."),))
