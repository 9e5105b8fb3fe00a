"""strategy.ddp, dp, zero1, fsdp, fsdp1: does data parallelism train correctly here, and divide memory as it should?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.strategy.agreement import BF16_ERROR, FP32_ERROR, judged_strategy, runs_of, strategy_check
from gpudoctor.facts.model.measured_strategies import StrategyRun
from gpudoctor.text.units import short_mib

# each rank's share of divided memory is rounded up to whole tensors (ZeRO) or rows (FSDP)
_SHARE_EXCESS = Limit(
    0.25,
    "of the share",
    "shares are rounded up to whole rows, which small models feel",
    name="share_excess",
    status="fail",
)
_PARTS = {"parameters": "the weights", "gradients": "the gradients", "optimizer": "the optimizer's state"}
_NOT_EVERY_PART = "weights gathered, or gradients scattered, that lack a rank's part"


@strategy_check(
    "ddp",
    (FP32_ERROR,),
    explains=(Explains(("strategy.*",), anywhere=True, gaps=True),),
)
def ddp(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate, in plain steps or with gradients accumulated over four micro-batches."""
    yield from judged_strategy(
        case, "ddp", "DDP", likely="gradients that are not averaged over all ranks, or weights changed on one of them"
    )


@strategy_check("dp", (FP32_ERROR,))
def dp(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate; report how much slower and less balanced it is than DDP."""
    yield from judged_strategy(case, "dp", "DataParallel", likely="copies between GPUs that arrive changed")
    runs, ddp_runs = runs_of(case, "dp"), runs_of(case, "ddp")
    if not runs or not runs[0].ranks:
        return
    extra = runs[0].figures.get("first_gpu_extra_bytes")
    parts = []
    if ddp_runs and ddp_runs[0].ranks:
        ratio = runs[0].ranks[0].step_ms / max(rank.step_ms for rank in ddp_runs[0].ranks)
        parts.append(f"a step takes {ratio:.2g} x that of DDP")
    if extra is not None:
        parts.append(f"the first GPU holds {short_mib(extra)} more than the others")
    if parts:
        yield ok(NODE, f"DataParallel: {' and '.join(parts)}; DDP is the one to use")


@strategy_check(
    "zero1",
    (FP32_ERROR, _SHARE_EXCESS),
)
def zero1(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate, or a rank holds more than its share of the optimizer state."""
    likely = "updated weights that were not handed to every rank"
    yield from _divided(case, "zero1", "ZeRO stage 1", likely, ("optimizer",))


@strategy_check(
    "fsdp",
    (FP32_ERROR, BF16_ERROR, _SHARE_EXCESS),
)
def fsdp(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate in fp32 or bf16, or a rank holds more than its share."""
    yield from _divided(case, "fsdp", "FSDP (fully_shard)", _NOT_EVERY_PART, tuple(_PARTS))


@strategy_check(
    "fsdp1",
    (FP32_ERROR, BF16_ERROR, _SHARE_EXCESS),
)
def fsdp1(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate in fp32 or bf16, or a rank holds more than its share."""
    yield from _divided(case, "fsdp1", "FSDP1", _NOT_EVERY_PART, tuple(_PARTS))


def _divided(case: Case, strategy: str, what: str, likely: str, parts: tuple[str, ...]) -> Iterator[Finding]:
    """The findings of a strategy that divides these parts of memory between the ranks."""
    yield from judged_strategy(case, strategy, what, likely=likely)
    for run in runs_of(case, strategy):
        yield from judged_shares(case, _SHARE_EXCESS, run, parts)


def judged_shares(case: Case, limit: Limit, run: StrategyRun, parts: tuple[str, ...]) -> Iterator[Finding]:
    """Compare each rank's use of these parts of memory with its share of what one rank alone uses."""
    tried = case.measurements.strategies
    if tried is None:
        return
    excess, ranks, wrong = case.limit(limit), tried.world_size, False
    for part in parts:
        whole = getattr(tried.reference.memory, f"{part}_bytes")
        most = max(getattr(rank.memory, f"{part}_bytes") for rank in run.ranks)
        allowed = whole / ranks * (1 + excess)
        if most > allowed:
            wrong = True
            text = f"{run.variant}: a rank holds {short_mib(most)} of {_PARTS[part]}, {short_mib(whole)} in all"
            share = f"1/{ranks} of it, and {excess:.0%} of that more"
            yield fail(
                NODE,
                Found(text, most, "B"),
                Expected(share, "<=", round(allowed), "B", case.limit_source(limit)),
                Evidence(f"{run.variant} {part}", f"{most} B on one rank"),
                likely="this torch, or a setting, does not divide it",
                advice=(Advice("See which torch this is.", "gpudoctor check env.torch"),),
            )
    if not wrong and len(run.ranks) == ranks:
        held = ", ".join(_PARTS[part] for part in parts)
        yield ok(NODE, f"{run.variant}: each rank holds 1/{ranks} of {held}")
