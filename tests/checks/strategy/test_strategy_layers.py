"""strategy.tensor, strategy.pipeline and strategy.3d: verdicts on hand-made figures."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.measured_strategies import StrategyRun
from gpudoctor.facts.model.measurements import Measurements, ProbeProblem
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from tests.checks.measured import measured
from tests.checks.one_check import expect, finds, judge, words
from tests.checks.simulated_nodes import packaged
from tests.checks.strategy.test_strategy_data import LOSSES, judged, rank

OFF = {"losses": tuple(loss + 0.2 for loss in LOSSES), "weights_error": 3.4}
BUBBLE = {
    "stages": 2.0,
    "microbatches": 4.0,
    "microbatches_held": 2.0,
    "bubble_share_expected": 0.2,
    "bubble_share": 0.22,
    "torch_schedule": 1.0,
}


def ran(strategy: str, variant: str, outcome: dict[str, Any] | None = None, **facts: Any) -> StrategyRun:
    """Both ranks came through a variant, with the same outcome."""
    ranks = tuple(rank(number, **(outcome or {})) for number in (0, 1))
    return StrategyRun(strategy, variant, "fp32", ranks, **facts)


@pytest.mark.parametrize("name", ["tensor", "pipeline", "3d"])
def test_what_no_rank_reported_is_never_a_pass(name: str) -> None:
    check_id = f"strategy.{name}"
    assert judge(check_id, Node()).status is Status.SKIP
    assert judged(name).status is Status.UNKNOWN
    why: Any = {name: Missing("rank 1: RuntimeError: connection lost", "failed")}
    assert judged(name, **why).status is Status.UNKNOWN
    hung = ProbeProblem("strategy", "timeout", "rank 1 did not leave strategy tensor", 1)
    node = Node()
    assert judge(check_id, node, measured(node, problems=(hung,))).status is Status.UNKNOWN


@pytest.mark.parametrize("name", ["tensor", "pipeline", "3d"])
def test_a_loss_or_weights_that_deviate_fail(name: str) -> None:
    figures = {"data": 2.0, "shards": 2.0, **BUBBLE}
    assert judged(name, ran(name, "v", figures=figures)).status is Status.PASS
    for outcome in ({"losses": (*LOSSES[:2], LOSSES[2] + 0.01)}, {"weights_error": 2e-4}):
        assert judged(name, ran(name, "v", outcome, figures=figures)).status is Status.FAIL
    assert judged(name, ran(name, "v", missing_weights=("head.weight",), figures=figures)).status is Status.FAIL


def test_the_rank_with_a_wrong_part_is_named_and_what_follows_from_it_is_not_told_again() -> None:
    run = ran("tensor", "tensor", OFF, figures={"shards": 2.0, "wrong_shards_rank_1": 1.0})
    finds(judged("tensor", run).findings, Status.FAIL, "held a wrong part of one weight", label="rank 1")


def test_a_deviation_without_a_wrong_part_is_told_of_tensor_parallelism() -> None:
    result = judged("tensor", ran("tensor", "tensor", OFF))
    assert [f.status for f in result.findings] == [Status.FAIL, Status.FAIL]


def test_the_bubble_of_cpu_ranks_is_told_and_not_judged() -> None:
    result = judged("pipeline", ran("pipeline", "1f1b", figures={**BUBBLE, "bubble_share": 0.9}))
    assert result.status is Status.PASS
    [told] = [f for f in result.findings if f.status is Status.SKIP]
    assert told.reason == (
        "2 CPU ranks (gloo): 1f1b: the stages idle for 90% of a step (20% by the formula), "
        "and the first keeps 2 microbatches (0.00238 MiB of activations a rank at most), not judged"
    )


@pytest.mark.parametrize(("share", "status"), [(0.2, Status.PASS), (0.34, Status.PASS), (0.4, Status.WARN)])
def test_a_bubble_on_gpus_far_over_the_formula_warns(share: float, status: Status) -> None:
    run = ran("pipeline", "gpipe", figures={**BUBBLE, "bubble_share": share})
    expect(judged("pipeline", run, node=packaged("hgx-h100-8")), status, "2 stages, 4 microbatches: 0.200")


def test_a_bubble_that_was_not_measured_is_unknown() -> None:
    assert judged("pipeline", ran("pipeline", "gpipe")).status is Status.UNKNOWN


def test_a_split_in_two_dimensions_is_called_one() -> None:
    flat = judged("3d", ran("3d", "3d", figures={"data": 1.0, "shards": 2.0, "stages": 2.0}))
    assert "a split in two dimensions was run, tensor 2 x pipeline 2; all three need 8" in words(flat)
    whole = judged("3d", ran("3d", "3d", figures={"data": 2.0, "shards": 2.0, "stages": 2.0}))
    assert "data 2 x tensor 2 x pipeline 2" in words(whole)
    assert {f.status for f in whole.findings} == {Status.PASS}


def test_too_few_ranks_for_three_dimensions_skip_with_the_reason() -> None:
    why: Any = {"3d": Missing("it needs 8 ranks, or another multiple of 4, and these are 2")}
    expect(judged("3d", **why), Status.SKIP, "needs 8 ranks")


def test_no_measurement_at_all_says_that_it_was_not_asked_for() -> None:
    assert "not measured in this run" in words(judge("strategy.tensor", Node(), Measurements()))
