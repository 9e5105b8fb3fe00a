"""run.data: do the ranks wait for their batches?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.finding import Advice, Finding, Found, skip, unknown, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.run.findings.balance import evidence_of, makes_others_wait
from gpudoctor.run.findings.run_check import run_check
from gpudoctor.run.findings.shares import (
    SHARE_LIMITS,
    expected_share,
    judged_small,
    ranks_with_shares,
    share_of_steps,
)
from gpudoctor.run.findings.slow_ranks import LIMITS, compared, share_without_cpu
from gpudoctor.run.observer.layout import DATA
from gpudoctor.run.watched import Watched

_TOO_BUSY_SHARE = 0.8  # of the time in which the ranks needed a CPU: then their loaders lack it too
_OF_ONE_RANK = Advice("Look for what this rank reads and the others do not: its files, their storage, their size.")
_OF_ALL_RANKS = Advice(
    "More workers and prefetching (num_workers, persistent_workers, pin_memory), or lighter preprocessing."
)


@run_check("run.data", title="Batches are there when they are needed", limits=(*LIMITS, *SHARE_LIMITS))
def data(watched: Watched) -> Iterator[Finding]:
    """Name a rank whose batches come late, or report that all ranks wait for data."""
    ranks = ranks_with_shares(watched)
    if not ranks:
        yield skip(NODE, "too few steps to judge")
        return
    if not any(rank.loader for rank in ranks):
        yield skip(NODE, "no DataLoader was used: the time to get a batch is part of the host time")
        return
    named = [each for each in compared(watched).slow if each.cause == "data"]
    for slow in named:
        text = f"its data takes {slow.own_ms:.1f} ms {slow.often}, theirs {slow.usual_ms:.1f} ms"
        likely = "slow data: its loader, the storage it reads from, or the CPUs of its workers"
        advice = (_OF_ONE_RANK, _measure(watched))
        yield makes_others_wait(watched, slow, text, evidence_of(watched, slow), likely, *advice)
    if named:
        return
    share = share_of_steps(ranks, DATA)
    text = f"{share.text} is spent on getting the next batch"
    found = Found(f"{text} ({share.cost})", round(share.part, 4), "share")
    lacked = min(share_without_cpu(rank.steps) for rank in ranks)
    if (judged := judged_small(share, found)) is not None:
        yield judged
    elif lacked >= _TOO_BUSY_SHARE and any(rank.loader_workers for rank in ranks):
        why = f"the ranks had no CPU for {lacked:.0%} of the time in which they needed one"
        yield unknown(NODE, f"the machine is too busy to judge: {text}, but {why}")
    else:
        advice = (_OF_ALL_RANKS, _measure(watched))
        likely = (
            "all ranks wait for their loaders" if len(ranks) > 1 else "slow data: the training waits for its loader"
        )
        yield warn(NODE, found, expected_share(), likely=likely, advice=advice)


def _measure(watched: Watched) -> Advice:
    backend = "" if any(rank.gpu is not None for rank in watched.ranks) else " --backend gloo"
    command = f"gpudoctor check storage data --data PATH{backend}"
    return Advice("See what the storage and the loaders of this node can do.", command)
