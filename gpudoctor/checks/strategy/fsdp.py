"""strategy.fsdp: does fully sharded training work here, with 1/n of the weights on each rank?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding
from gpudoctor.checks.strategy.agreement import BF16_ERROR, FP32_ERROR, judged_strategy, strategy_check
from gpudoctor.checks.strategy.memory_shares import SHARE_EXCESS


@strategy_check(
    "fsdp",
    "Fully sharded training (fully_shard) trains as one rank does, with 1/n of the weights on each",
    (FP32_ERROR, BF16_ERROR, SHARE_EXCESS),
)
def fsdp(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate in fp32 or bf16, or a rank holds more than its share."""
    yield from judged_strategy(
        case,
        "fsdp",
        "FSDP (fully_shard)",
        likely="weights gathered, or gradients scattered, that lack a rank's part",
        divided=("parameters", "gradients", "optimizer"),
    )
