"""strategy.checkpointing: does the backward pass recompute exactly what the forward pass computed?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Evidence, Expected, Finding, Found, fail, ok, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.measured.ranks import rank_subject
from gpudoctor.checks.strategy.agreement import ADVICE, FP32_ERROR, judged_strategy, runs_of, strategy_check
from gpudoctor.facts.model.measured_strategies import StrategyRun
from gpudoctor.text.units import short_mib

_ERROR = "error_rank_"


@strategy_check("checkpointing", (FP32_ERROR,))
def checkpointing(case: Case) -> Iterator[Finding]:
    """Fail if loss or gradients differ from those without it; warn if no less is kept for the backward pass."""
    wrong = [finding for run in runs_of(case, "checkpointing") for finding in _wrong_when_repeated(case, run)]
    likely = "a forward pass that gives other numbers when repeated"
    yield from judged_strategy(case, "checkpointing", "activation checkpointing", likely=likely, wrong=wrong)
    for run in runs_of(case, "checkpointing"):
        yield from _memory(run)


def _wrong_when_repeated(case: Case, run: StrategyRun) -> Iterator[Finding]:
    """Failures for ranks whose loss or gradients of one batch differ with checkpointing or were not reported."""
    limit, source = case.limit(FP32_ERROR), case.limit_source(FP32_ERROR)
    for rank in run.ranks:
        error = run.figures.get(f"{_ERROR}{rank.rank}")
        if error is not None and error <= limit:
            continue
        off = "are no finite numbers" if error is None else f"are off by {error:.2g} from those without it"
        yield fail(
            rank_subject(case, rank.rank),
            Found(f"{run.variant}: loss or gradients of one batch {off}", "not finite" if error is None else error),
            Expected(f"loss and gradients without it, within {limit:g}", "<=", limit, "relative", source),
            Evidence(f"{run.variant}, rank {rank.rank}", "one batch, computed without it and with it"),
            likely="a forward pass that gives other numbers when repeated: arithmetic or memory that is not stable",
            advice=ADVICE,
        )


def _memory(run: StrategyRun) -> Iterator[Finding]:
    for part, what in (("kept", "kept for the backward pass"), ("peak", "torch's peak of a pass")):
        plain = run.figures.get(f"plain_{part}_bytes")
        less = run.figures.get(f"checkpointed_{part}_bytes")
        if plain is None or less is None:
            continue
        text = f"{run.variant}: {short_mib(round(less))} {what}, {short_mib(round(plain))} without it"
        if less < plain:
            yield ok(NODE, text)
        else:
            yield warn(NODE, Found(text, round(less), "B"), Expected("less than without it", "<", round(plain), "B"))
