"""strategy.tensor: does a model with its weights split over ranks train correctly here?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail
from gpudoctor.checks.core.probe_outcome import rank_subject
from gpudoctor.checks.strategy.agreement import FP32_ERROR, judged_strategy, runs_of, strategy_check
from gpudoctor.facts.model.measured_strategies import StrategyRun

_WRONG_SHARDS = "wrong_shards_rank_"


@strategy_check("tensor", "Tensor parallelism trains what one rank alone trains", (FP32_ERROR,))
def tensor(case: Case) -> Iterator[Finding]:
    """Fail a rank that held a wrong part of a weight; without one, fail if losses or weights deviate."""
    wrong = [finding for run in runs_of(case, "tensor") for finding in _wrong_shards(case, run)]
    likely = "a sum over the ranks that is wrong, or a rank's arithmetic"
    yield from judged_strategy(case, "tensor", "tensor parallelism", likely=likely, wrong=wrong)


def _wrong_shards(case: Case, run: StrategyRun) -> Iterator[Finding]:
    counts = {
        int(name.removeprefix(_WRONG_SHARDS)): int(count)
        for name, count in run.figures.items()
        if name.startswith(_WRONG_SHARDS)
    }
    for rank, count in sorted(counts.items()):
        of = "one weight" if count == 1 else f"{count} weights"
        off = next((r.weights_error for r in run.ranks if r.rank == rank), None)
        yield fail(
            rank_subject(case, rank),
            Found(f"{run.variant}: it held a wrong part of {of} before the first step", count),
            Expected("its own part of every weight, bit for bit", "==", 0),
            Evidence("probe", f"rank {rank}: {of} not equal, bit for bit"),
            Evidence(f"{run.variant} weights after the steps", "not finite" if off is None else f"off by {off:.2g}"),
            likely="the part was changed on its way to the rank, or in its memory",
            advice=(
                Advice("Look for memory and link errors.", "gpudoctor check gpu.ecc gpu.xid nvlink.errors"),
                Advice("Check arithmetic and collectives alone.", "gpudoctor check collective compute --level full"),
            ),
        )
