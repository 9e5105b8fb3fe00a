"""strategy.zero1: does ZeRO stage 1 train correctly here, with the optimizer state divided?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding
from gpudoctor.checks.strategy.agreement import FP32_ERROR, judged_strategy, strategy_check
from gpudoctor.checks.strategy.memory_shares import SHARE_EXCESS


@strategy_check(
    "zero1",
    "ZeroRedundancyOptimizer trains as one rank does, and divides the optimizer's state",
    (FP32_ERROR, SHARE_EXCESS),
)
def zero1(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate, or a rank holds more than its share of the optimizer state."""
    yield from judged_strategy(
        case,
        "zero1",
        "ZeRO stage 1",
        likely="updated weights that were not handed to every rank",
        divided=("optimizer",),
    )
