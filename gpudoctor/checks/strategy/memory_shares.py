"""Whether every rank holds only its share of weights, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok
from gpudoctor.checks.core.subject import NODE
from gpudoctor.facts.model.measured_strategies import StrategyRun
from gpudoctor.units import short_mib

SHARE_EXCESS = Limit(
    0.25,
    "of the share",
    "shares are rounded up to whole rows, which small models feel",
    name="share_excess",
    status="fail",
)
# each rank's share of divided memory is rounded up to whole tensors (ZeRO) or rows (FSDP)
_PARTS = {"parameters": "the weights", "gradients": "the gradients", "optimizer": "the optimizer's state"}


def judged_shares(case: Case, limit: Limit, run: StrategyRun, parts: tuple[str, ...]) -> Iterator[Finding]:
    """Compare each rank's use of these parts of memory with its share of what one rank alone uses."""
    tried = case.measurements.strategies
    if tried is None:
        return
    excess, source = case.limit(limit), case.limit_source(limit)
    wrong = False
    for part in parts:
        whole = getattr(tried.reference.memory, f"{part}_bytes")
        most = max(getattr(rank.memory, f"{part}_bytes") for rank in run.ranks)
        allowed = whole / tried.world_size * (1 + excess)
        if most > allowed:
            wrong = True
            yield fail(
                NODE,
                Found(
                    f"{run.variant}: a rank holds {short_mib(most)} of {_PARTS[part]}, {short_mib(whole)} in all",
                    most,
                    "B",
                ),
                Expected(
                    f"1/{tried.world_size} of it, and {excess:.0%} of that more", "<=", round(allowed), "B", source
                ),
                Evidence(f"{run.variant} {part}", f"{most} B on one rank"),
                likely="this torch, or a setting, does not divide it",
                advice=(Advice("See which torch this is.", "gpudoctor check env.torch"),),
            )
    if not wrong and len(run.ranks) == tried.world_size:
        yield ok(
            NODE, f"{run.variant}: each rank holds 1/{tried.world_size} of {', '.join(map(_PARTS.__getitem__, parts))}"
        )
