"""strategy.fsdp1: whether FullyShardedDataParallel trains right here, with 1/n of the weights on each rank."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.strategy.agreement import BF16_ERROR, FP32_ERROR, judged_strategy, runs_of
from gpudoctor.checks.strategy.memory_shares import SHARE_EXCESS, judged_shares


@check(
    "strategy.fsdp1",
    title="FullyShardedDataParallel (FSDP1) trains as one rank does, with 1/n of the weights on each",
    level="full",
    needs_gpu=False,
    limits=(FP32_ERROR, BF16_ERROR, SHARE_EXCESS),
)
def fsdp1(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate in fp32 or bf16, or a rank holds more than its share."""
    yield from judged_strategy(
        case, "fsdp1", "FSDP1", likely="weights gathered, or gradients scattered, that lack a rank's part"
    )
    for run in runs_of(case, "fsdp1"):
        yield from judged_shares(case, SHARE_EXCESS, run, ("parameters", "gradients", "optimizer"))
