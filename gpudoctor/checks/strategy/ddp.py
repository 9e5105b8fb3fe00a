"""strategy.ddp: does DistributedDataParallel train correctly here?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Finding
from gpudoctor.checks.strategy.agreement import FP32_ERROR, judged_strategy, strategy_check


@strategy_check(
    "ddp",
    "DistributedDataParallel trains what one rank alone trains",
    (FP32_ERROR,),
    explains=(Explains(("strategy.*",), anywhere=True, gaps=True),),
)
def ddp(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate, in plain steps or with gradients accumulated over four micro-batches."""
    yield from judged_strategy(
        case, "ddp", "DDP", likely="gradients that are not averaged over all ranks, or weights changed on one of them"
    )
