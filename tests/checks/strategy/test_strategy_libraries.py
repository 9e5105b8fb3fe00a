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
    StrategyMemory,
    StrategyRank,
    StrategyReference,
    StrategyRun,
    StrategyShape,
)
from gpudoctor.facts.model.measurements import Launch, Measurements, ProbeProblem, RankInfo
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node, Source
from tests.checks.one_check import expect, gpus, judge, uuid_of, words

LOSSES = (4.5, 4.2, 4.0)
WHOLE = StrategyMemory(parameters_bytes=1000, gradients_bytes=1000, optimizer_bytes=2000)
SHAPE = StrategyShape(layers=2, width=32, heads=4, vocabulary=64, sequence=16, batch=8)
CPU_NODE = Node(source=Source(kind="live"))


def rank(number: int, memory: StrategyMemory = WHOLE, error: float | None = 1e-7, **facts: Any) -> StrategyRank:
    # each rank has its own part of the batch: only their mean counts
    losses = tuple(loss + (0.1 if number % 2 else -0.1) for loss in LOSSES)
    return replace(StrategyRank(number, losses, error, 250, memory, 5.0), **facts)


def found(*runs: StrategyRun, not_run: dict[str, Missing] | None = None, device: Any = "cpu") -> Strategies:
    reference = StrategyReference(250, LOSSES, (), 4.0, WHOLE)
    return Strategies(device, 2, SHAPE, len(LOSSES), reference, runs, not_run or {})


def zero(stage: int, *ranks: StrategyRank) -> StrategyRun:
    half = replace(WHOLE, optimizer_bytes=1000, parameters_bytes=500 if stage == 3 else 1000)
    return StrategyRun("deepspeed", f"zero-{stage}", "fp32", ranks or (rank(0, half), rank(1, half)))


def mirrored(*ranks: StrategyRank, variant: str = "mirrored") -> StrategyRun:
    return StrategyRun("tensorflow", variant, "fp32", ranks or (rank(0), rank(1)))


def library(name: str, strategies: Strategies) -> LibraryStrategies:
    return LibraryStrategies(name, "1.0", strategies)


def deepspeed(strategies: Strategies, **measured: Any) -> CheckResult:
    measurements = Measurements(deepspeed=library("DeepSpeed", strategies), **measured)
    return judge("strategy.deepspeed", CPU_NODE, measurements)


def tensorflow(strategies: Strategies, node: Node = CPU_NODE, **measured: Any) -> CheckResult:
    measurements = Measurements(tensorflow=library("TensorFlow", strategies), **measured)
    return judge("strategy.tensorflow", node, measurements)


def test_stages_that_agree_and_divide_pass_one_by_one() -> None:
    result = deepspeed(found(zero(1), zero(2), zero(3)))
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
    result = deepspeed(found(zero(stage, right.ranks[0], rank(1, undivided))))
    expect(result, Status.FAIL, f"zero-{stage}: a rank holds", f"zero-{stage} {part}")


@pytest.mark.parametrize("error", [2e-4, None])
def test_a_rank_whose_weights_deviate_is_named(error: float | None) -> None:
    right = zero(1).ranks
    result = deepspeed(found(zero(1, right[0], rank(1, right[1].memory, error))))
    [finding] = [each for each in result.findings if each.status is Status.FAIL]
    assert finding.subject.rank == 1


def test_losses_that_deviate_from_those_of_one_device_fail() -> None:
    off = rank(1, losses=tuple(loss + 0.2 for loss in LOSSES))
    expect(tensorflow(found(mirrored(rank(0), off))), Status.FAIL, "loss is off")


def test_what_befell_the_ranks_of_torch_is_not_told_again_here() -> None:
    problem = ProbeProblem("launch", "crash", "rank 0 died", rank=0)
    assert tensorflow(found(mirrored()), problems=(problem,)).status is Status.PASS
    assert deepspeed(found(zero(1), zero(2), zero(3)), problems=(problem,)).status is Status.PASS


def test_one_of_two_strategies_that_broke_is_unknown_and_the_other_is_judged() -> None:
    why = Missing("worker 1 was ended by SIGSEGV in 'train under multi-worker'", "failed")
    result = tensorflow(found(mirrored(), not_run={"multi-worker": why}))
    assert sorted(finding.status.value for finding in result.findings) == ["pass", "unknown"]
    assert "MultiWorkerMirroredStrategy of TensorFlow 1.0: worker 1 was ended by SIGSEGV" in words(result)


def test_a_stage_that_raised_leaves_those_before_it_judged() -> None:
    why = Missing("rank 0: RuntimeError: no such kernel", "failed")
    expect(deepspeed(found(zero(1), not_run={"deepspeed": why})), Status.UNKNOWN, "zero-1: 3 steps")


def test_a_stage_without_figures_is_no_pass() -> None:
    expect(deepspeed(found(zero(1), zero(2))), Status.UNKNOWN, "no rank reported a result of zero-3")


def test_on_gpus_text_names_gpus_and_the_launch_of_the_ranks_says_which() -> None:
    node = Node(source=Source(kind="live"), gpus=gpus(4))
    ranks = tuple(RankInfo(number, "cuda", number + 2, uuid_of(number + 2)) for number in range(2))
    drifted = found(mirrored(rank(0), rank(1, error=0.1)), device="cuda")
    [finding] = [
        each
        for each in tensorflow(drifted, node, launch=Launch("nccl", 2, ranks)).findings
        if each.status is Status.FAIL
    ]
    assert (finding.subject.rank, finding.subject.gpu) == (1, 3)
    assert "2 GPUs" in words(tensorflow(found(mirrored(), device="cuda"), node))


def test_the_processes_of_tensorflow_have_no_gloo_between_them() -> None:
    assert "on 2 CPU ranks as on one alone" in words(tensorflow(found(mirrored())))


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
