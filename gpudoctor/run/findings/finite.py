"""run.finite: are loss and gradients finite, and on which rank did they first fail to be?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip
from gpudoctor.checks.core.subject import NODE
from gpudoctor.run.findings.balance import subject_of
from gpudoctor.run.findings.run_check import run_check
from gpudoctor.run.watched import Watched, WatchedRank

_LATEST = 1 << 62
_ALONE = "a bad batch, a division by zero or an overflow on this rank: the reduction then spreads it to all"
_TOGETHER = "all ranks have it in the same step: it came in with the gradients of one of them, or from the weights"
_ADVICE = (
    Advice("Look at its batch of that step; torch.autograd.set_detect_anomaly(True) names the operation."),
    Advice("If no code explains it: do the GPUs compute right?", "gpudoctor check --level full"),
)


@run_check("run.finite", title="Loss and gradients are finite")
def finite(watched: Watched) -> Iterator[Finding]:
    """Name the rank on which the first value that is not finite appeared: the reduction spreads it to all others."""
    if not any(rank.finished for rank in watched.ranks):
        yield skip(NODE, "no steps were seen")
        return
    bad = [rank for rank in watched.ranks if rank.bad_loss is not None or rank.bad_gradient is not None]
    if not bad:
        yield ok(NODE, "every loss and gradient that was looked at was finite")
        return
    first_loss = min((_step(rank.bad_loss) for rank in bad), default=_LATEST)
    first_gradient = min((_step(rank.bad_gradient) for rank in bad), default=_LATEST)
    # a loss is a rank's own; gradients are looked at after their reduction, so that all have it at once
    what, first = ("loss", first_loss) if first_loss <= first_gradient else ("gradients", first_gradient)
    came = [rank for rank in bad if _step(rank.bad_loss if what == "loss" else rank.bad_gradient) == first]
    alone = len(came) < max(2, len(watched.ranks))
    evidence = [Evidence(f"rank {rank.rank}", _history(rank)) for rank in bad[:8]]
    for rank in came if alone else came[:1]:
        who = "it" if alone else "all ranks"
        text = f"{what} not finite (NaN or infinite) from step {first} on; {who} had it first"
        yield fail(
            subject_of(watched, rank) if alone else NODE,
            Found(text, first, "step"),
            Expected("finite"),
            *evidence,
            likely=_ALONE if alone else _TOGETHER,
            advice=_ADVICE,
        )


def _step(number: int | None) -> int:
    return _LATEST if number is None else number


def _history(rank: WatchedRank) -> str:
    parts = (("loss", rank.bad_loss), ("gradients", rank.bad_gradient))
    return ", ".join(f"{name} from step {step}" for name, step in parts if step is not None)
