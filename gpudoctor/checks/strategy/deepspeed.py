"""strategy.deepspeed: does DeepSpeed's ZeRO train correctly here?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Finding, unknown
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.strategy.agreement import BF16_ERROR, FP32_ERROR, judged_strategy, runs_of, strategy_check
from gpudoctor.checks.strategy.library import library_absent, library_case
from gpudoctor.checks.strategy.memory_shares import judged_shares

# what each stage of ZeRO divides of the memory in use between steps (arXiv:1910.02054, figure 1)
_DIVIDED = {"zero-1": ("optimizer",), "zero-2": ("optimizer",), "zero-3": ("parameters", "optimizer")}
_SHARE_EXCESS = Limit(
    0.25, "of the share", "DeepSpeed pads every share to the same length", name="share_excess", status="fail"
)


@strategy_check(
    "deepspeed", "DeepSpeed's ZeRO 1, 2 and 3 train what one rank alone trains", (FP32_ERROR, BF16_ERROR, _SHARE_EXCESS)
)
def deepspeed(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate in a stage, or a rank holds more than its share."""
    measured = case.measurements.deepspeed
    if measured is None:
        yield library_absent(case, "deepspeed", "DeepSpeed")
        return
    own = library_case(case, measured)
    what = f"DeepSpeed {measured.version}"
    yield from judged_strategy(
        own, "deepspeed", what, likely="parts of gradients or weights that did not reach every rank"
    )
    runs = runs_of(own, "deepspeed")
    lost = [stage for stage in _DIVIDED if stage not in [run.variant for run in runs]]
    if lost and "deepspeed" not in measured.strategies.not_run:
        yield unknown(NODE, f"{what}: no rank reported a result of {', '.join(lost)}")
    for run in runs:
        yield from judged_shares(own, _SHARE_EXCESS, run, _DIVIDED.get(run.variant, ()))
