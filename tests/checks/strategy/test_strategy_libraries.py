"""strategy.deepspeed and strategy.tensorflow: verdicts on their figures."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.measured_strategies import (
    LibraryStrategies,
    Strategies,
    StrategyRank,
    StrategyRun,
)
from gpudoctor.facts.model.measurements import Launch, Measurements, ProbeProblem, RankInfo
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node, Source
from tests.checks.one_check import expect, gpus, judge, uuid_of, words
from tests.checks.strategy.test_strategy_data import LOSSES, WHOLE, rank, tried

CPU_NODE = Node(source=Source(kind="live"))


def zero(stage: int, *ranks: StrategyRank) -> StrategyRun:
    part = replace(WHOLE, optimizer_bytes=8000, parameters_bytes=4000 if stage == 3 else 8000)
    both = (rank(0, memory=part), rank(1, memory=part))
    return StrategyRun("deepspeed", f"zero-{stage}", "fp32", ranks or both)


def mirrored(*ranks: StrategyRank) -> StrategyRun:
    return StrategyRun("tensorflow", "mirrored", "fp32", ranks or (rank(0), rank(1)))


def library(name: str, strategies: Strategies) -> LibraryStrategies:
    return LibraryStrategies(name, "1.0", strategies)


def deepspeed(strategies: Strategies, **measured: Any) -> CheckResult:
    measurements = Measurements(deepspeed=library("DeepSpeed", strategies), **measured)
    return judge("strategy.deepspeed", CPU_NODE, measurements)


def tensorflow(strategies: Strategies, node: Node = CPU_NODE, **measured: Any) -> CheckResult:
    measurements = Measurements(tensorflow=library("TensorFlow", strategies), **measured)
    return judge("strategy.tensorflow", node, measurements)


def test_stages_that_agree_and_divide_pass_one_by_one() -> None:
    result = deepspeed(tried(zero(1), zero(2), zero(3)))
    assert {finding.status for finding in result.findings} == {Status.PASS}
    assert {finding.found.text.partition(":")[0] for finding in result.findings if finding.found} == {
        *("zero-1", "zero-2", "zero-3"),
    }
    for part in ("zero-1: 3 steps on 2 CPU ranks (gloo)", "zero-3: each rank holds 1/2 of the weights"):
        assert part in words(result)


@pytest.mark.parametrize(("stage", "part"), [(1, "optimizer"), (2, "optimizer"), (3, "parameters")])
def test_a_stage_that_does_not_divide_what_it_is_for_fails(stage: int, part: str) -> None:
    right = zero(stage)
    undivided = replace(right.ranks[1].memory, **{f"{part}_bytes": getattr(WHOLE, f"{part}_bytes")})
    result = deepspeed(tried(zero(stage, right.ranks[0], rank(1, memory=undivided))))
    expect(result, Status.FAIL, f"zero-{stage}: a rank holds", f"zero-{stage} {part}")


@pytest.mark.parametrize("error", [2e-4, None])
def test_a_rank_whose_weights_deviate_is_named(error: float | None) -> None:
    right = zero(1).ranks
    result = deepspeed(tried(zero(1, right[0], rank(1, memory=right[1].memory, weights_error=error))))
    expect(result, Status.FAIL, rank=1)


def test_losses_that_deviate_from_those_of_one_device_fail() -> None:
    off = rank(1, losses=tuple(loss + 0.2 for loss in LOSSES))
    expect(tensorflow(tried(mirrored(rank(0), off))), Status.FAIL, "loss is off")


def test_what_befell_the_ranks_of_torch_is_not_told_again_here() -> None:
    problem = ProbeProblem("launch", "crash", "rank 0 died", rank=0)
    assert tensorflow(tried(mirrored()), problems=(problem,)).status is Status.PASS
    assert deepspeed(tried(zero(1), zero(2), zero(3)), problems=(problem,)).status is Status.PASS


def test_one_of_two_strategies_that_broke_is_unknown_and_the_other_is_judged() -> None:
    why = Missing("worker 1 was ended by SIGSEGV in 'train under multi-worker'", "failed")
    result = tensorflow(tried(mirrored(), **{"multi-worker": why}))
    assert sorted(finding.status.value for finding in result.findings) == ["pass", "unknown"]
    assert "MultiWorkerMirroredStrategy of TensorFlow 1.0: worker 1 was ended by SIGSEGV" in words(result)


def test_a_stage_that_raised_leaves_those_before_it_judged() -> None:
    why = Missing("rank 0: RuntimeError: no such kernel", "failed")
    expect(deepspeed(tried(zero(1), deepspeed=why)), Status.UNKNOWN, "zero-1: 3 steps")


def test_a_stage_without_figures_is_no_pass() -> None:
    expect(deepspeed(tried(zero(1), zero(2))), Status.UNKNOWN, "no rank reported a result of zero-3")


def test_on_gpus_text_names_gpus_and_the_launch_of_the_ranks_says_which() -> None:
    node = Node(source=Source(kind="live"), gpus=gpus(4))
    ranks = tuple(RankInfo(number, "cuda", number + 2, uuid_of(number + 2)) for number in range(2))
    drifted = tried(mirrored(rank(0), rank(1, weights_error=0.1)), device="cuda")
    [finding] = [
        each
        for each in tensorflow(drifted, node, launch=Launch("nccl", 2, ranks)).findings
        if each.status is Status.FAIL
    ]
    assert (finding.subject.rank, finding.subject.gpu) == (1, 3)
    assert "2 GPUs" in words(tensorflow(tried(mirrored(), device="cuda"), node))


def test_the_processes_of_tensorflow_have_no_gloo_between_them() -> None:
    assert "on 2 CPU ranks as on one alone" in words(tensorflow(tried(mirrored())))


@pytest.mark.parametrize("part", ["deepspeed", "tensorflow"])
@pytest.mark.parametrize(
    ("why", "expected"),
    [
        (None, Status.SKIP),
        (Missing("DeepSpeed is not installed: pip install 'deepspeed>=0.16'"), Status.SKIP),
        (Missing("rank 0 did not leave import deepspeed within 240 s", "failed"), Status.UNKNOWN),
    ],
)
def test_no_figures_are_never_a_pass(part: str, why: Missing | None, expected: Status) -> None:
    result = judge(f"strategy.{part}", CPU_NODE, Measurements(not_run={} if why is None else {part: why}))
    assert result.status is expected
    assert why is None or why.reason in words(result)


def test_the_install_line_says_the_name_of_the_library_once() -> None:
    reason = "DeepSpeed is not installed: pip install 'deepspeed>=0.16'"
    [finding] = judge("strategy.deepspeed", CPU_NODE, Measurements(not_run={"deepspeed": Missing(reason)})).findings
    assert finding.reason == reason
