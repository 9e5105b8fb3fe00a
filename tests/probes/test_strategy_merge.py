"""The ranks' reports on strategies, merged."""

from __future__ import annotations

from gpudoctor.facts.model.measured_strategies import StrategyMemory, StrategyRank, StrategyReference, StrategyShape
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner import messages
from gpudoctor.probes.runner.merge import merged_strategies
from gpudoctor.probes.runner.plan import ProbePlan
from gpudoctor.probes.runner.run_progress import RunProgress
from tests.narrowed import present

MEMORY = StrategyMemory(1, 2, 3)
SHARED = messages.StrategyShared(
    StrategyShape(4, 32, 4, 64, 16, 8), 10, StrategyReference(9, (4.0,), (4.1,), 2.0, MEMORY)
)


def sample(rank: int, variant: str = "fsdp", **figures: float) -> messages.StrategySample:
    result = StrategyRank(rank, (4.0 + rank,), 1e-7, 9, MEMORY, 5.0)
    return messages.StrategySample("fsdp", variant, "fp32", result, (), figures)


def test_nothing_is_merged_before_the_strategies_have_begun() -> None:
    assert merged_strategies([], 2, "cpu") is None


def test_each_variant_has_its_ranks_in_order_and_the_largest_of_their_figures() -> None:
    said: list[tuple[int, messages.ProbeSample]] = [(0, SHARED)]
    for rank, share in ((1, 0.4), (0, 0.3)):
        said += [(rank, sample(rank, share=share)), (rank, sample(rank, "fsdp-bf16"))]
    merged = present(merged_strategies(said, 2, "cuda"))
    assert (merged.device, merged.world_size, merged.steps) == ("cuda", 2, 10)
    assert [run.variant for run in merged.runs] == ["fsdp", "fsdp-bf16"]
    assert [rank.rank for rank in merged.runs[0].ranks] == [0, 1]
    assert merged.runs[0].figures == {"share": 0.4}


def test_a_failed_attempt_counts_for_more_than_a_rank_that_lacks_it() -> None:
    lacking, failed = Missing("no such name", "unsupported"), Missing("rank 1: RuntimeError: odd", "failed")
    for first, second in ((lacking, failed), (failed, lacking)):
        left_out = [(rank, messages.StrategyLeftOut("fsdp", why)) for rank, why in enumerate((first, second))]
        said: list[tuple[int, messages.ProbeSample]] = [(0, SHARED), *left_out]
        assert present(merged_strategies(said, 2, "cpu")).not_run == {"fsdp": failed}


def test_a_burn_keeps_the_strategies_of_its_first_round() -> None:
    course = RunProgress(ProbePlan("gloo", 1, probes=("train", "strategy"), level="burn", duration_s=60.0), lambda: 0.0)
    course.begin(0, "strategy")
    course.take(0, SHARED)
    course.take(0, sample(0))
    course.finish(0, "strategy")
    course.begin(0, "train")
    course.finish(0, "train")
    course.finish(0, "strategy")
    assert len(present(course.measured().strategies).runs) == 1
