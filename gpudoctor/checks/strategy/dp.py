"""strategy.dp: does DataParallel train correctly here, and at what cost?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding, ok
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.strategy.agreement import FP32_ERROR, judged_strategy, runs_of, strategy_check
from gpudoctor.units import short_mib


@strategy_check("dp", "DataParallel trains what one GPU alone trains", (FP32_ERROR,))
def dp(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate; report how much slower and less balanced it is than DDP."""
    yield from judged_strategy(case, "dp", "DataParallel", likely="copies between GPUs that arrive changed")
    runs, ddp_runs = runs_of(case, "dp"), runs_of(case, "ddp")
    if not runs or not runs[0].ranks:
        return
    extra = runs[0].figures.get("first_gpu_extra_bytes")
    words = []
    if ddp_runs and ddp_runs[0].ranks:
        ratio = runs[0].ranks[0].step_ms / max(rank.step_ms for rank in ddp_runs[0].ranks)
        words.append(f"a step takes {ratio:.2g} x that of DDP")
    if extra is not None:
        words.append(f"the first GPU holds {short_mib(extra)} more than the others")
    if words:
        yield ok(NODE, f"DataParallel: {' and '.join(words)}; DDP is the one to use")
