"""strategy.dp, .ddp, .zero1 and .fsdp: whether data-parallel training works here, and at what price."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import NODE, Advice, Evidence, Expected, Finding, Found, fail, ok
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.strategy.verdict import BF16_ERROR, FP32_ERROR, judged_strategy, mib, runs_of
from gpudoctor.facts.model.measured_strategies import StrategyRun

DP, DDP, ZERO1, FSDP = "strategy.dp", "strategy.ddp", "strategy.zero1", "strategy.fsdp"
# of what is divided, each rank has its share, rounded up to whole tensors (ZeRO) or rows (FSDP)
_PARTS = {"parameters": "the weights", "gradients": "the gradients", "optimizer": "the optimizer's state"}


@check(
    DDP,
    title="DistributedDataParallel trains what one rank alone trains",
    level="full",
    needs_gpu=False,
    limits=(FP32_ERROR,),
)
def ddp(case: Case) -> Iterator[Finding]:
    """Fail where losses or weights deviate, at once or with gradients accumulated over four micro-batches."""
    yield from judged_strategy(
        case, "ddp", "DDP", likely="gradients that are not averaged over all ranks, or weights changed on one of them"
    )


@check(DP, title="DataParallel trains what one GPU alone trains", level="full", needs_gpu=False, limits=(FP32_ERROR,))
def dp(case: Case) -> Iterator[Finding]:
    """Fail where losses or weights deviate; say how much slower and less balanced it is than DDP."""
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
        words.append(f"the first GPU holds {mib(extra)} more than the others")
    if words:
        yield ok(NODE, f"DataParallel: {' and '.join(words)}; DDP is the one to use")


_SHARE_EXCESS = Limit(
    0.25, "of the share", "shares are rounded up to whole rows, which small models feel", name="share_excess"
)


@check(
    ZERO1,
    title="ZeroRedundancyOptimizer trains as one rank does, and divides the optimizer's state",
    level="full",
    needs_gpu=False,
    limits=(FP32_ERROR, _SHARE_EXCESS),
)
def zero1(case: Case) -> Iterator[Finding]:
    """Fail where losses or weights deviate, or a rank holds more than its share of the optimizer's state."""
    yield from judged_strategy(
        case, "zero1", "ZeRO stage 1", likely="updated weights that were not handed to every rank"
    )
    for run in runs_of(case, "zero1"):
        yield from shares(case, _SHARE_EXCESS, run, ("optimizer",))


@check(
    FSDP,
    title="Fully sharded training (fully_shard) trains as one rank does, with 1/n of the weights on each",
    level="full",
    needs_gpu=False,
    limits=(FP32_ERROR, BF16_ERROR, _SHARE_EXCESS),
)
def fsdp(case: Case) -> Iterator[Finding]:
    """Fail where losses or weights deviate in fp32 or bf16, or a rank holds more than its share."""
    yield from judged_strategy(
        case, "fsdp", "FSDP (fully_shard)", likely="weights gathered, or gradients scattered, that lack a rank's part"
    )
    for run in runs_of(case, "fsdp"):
        yield from shares(case, _SHARE_EXCESS, run, ("parameters", "gradients", "optimizer"))


def shares(case: Case, limit: Limit, run: StrategyRun, parts: tuple[str, ...]) -> Iterator[Finding]:
    """Whether every rank holds its share of these parts of memory only, against one rank alone."""
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
                Found(f"{run.variant}: a rank holds {mib(most)} of {_PARTS[part]}, {mib(whole)} in all", most, "B"),
                Expected(
                    f"1/{tried.world_size} of it, and {excess:.0%} of that more", "<=", round(allowed), "B", source
                ),
                Evidence(f"{run.variant} {part}", f"{most} B on one rank"),
                likely="this torch, or a setting, does not divide it",
                advice=(Advice("See which torch this is.", "gpudoctor check env.torch"),),
            )
    if not wrong and len(run.ranks) == tried.world_size:
        yield ok(NODE, f"{run.variant}: each rank holds 1/{tried.world_size} of {_in_words(parts)}")


def _in_words(parts: tuple[str, ...]) -> str:
    return ", ".join(_PARTS[part] for part in parts)
