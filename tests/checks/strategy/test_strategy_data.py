"""strategy.dp, .ddp, .zero1 and .fsdp, and what all strategies are judged by: on figures made by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.gpu import Settings
from gpudoctor.facts.model.measured_strategies import (
    Strategies,
    StrategyMemory,
    StrategyRank,
    StrategyReference,
    StrategyRun,
    StrategyShape,
)
from gpudoctor.facts.model.measurements import Measurements, ProbeProblem
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from tests.checks.measured import measured
from tests.checks.one_check import expect, finds, gpus, judge, text_of, words
from tests.narrowed import present

LOSSES = (4.25, 4.0, 3.75)
WHOLE = StrategyMemory(8000, 8000, 16000, 5000)
HALF = StrategyMemory(4000, 4000, 8000, 2500)
DATA = ("ddp", "zero1", "fsdp", "fsdp1")


def rank(number: int, **facts: Any) -> StrategyRank:
    """One that succeeded; the two ranks' losses differ, as their data do."""
    healthy: dict[str, Any] = {
        "losses": tuple(loss + (0.1 if number else -0.1) for loss in LOSSES),
        "weights_error": 3e-7,
        "compared": 2000,
        "memory": HALF,
        "step_ms": 5.0 + number,
        "worst_weight": "head.weight",
        "communicated_bytes": 8000,
    }
    return StrategyRank(number, **{**healthy, **facts})


def run(variant: str, *ranks: StrategyRank, **facts: Any) -> StrategyRun:
    strategy = variant.partition("-")[0]
    dtype: Any = "bf16" if variant.endswith("bf16") else "fp32"
    return StrategyRun(strategy, variant, dtype, ranks or (rank(0), rank(1)), **facts)


def tried(*runs: StrategyRun, device: Any = "cpu", **not_run: Missing) -> Strategies:
    losses_bf16 = tuple(loss + 0.01 for loss in LOSSES)
    reference = StrategyReference(2000, LOSSES, losses_bf16, 20.0, WHOLE)
    return Strategies(device, 2, StrategyShape(4, 32, 4, 64, 16, 8), len(LOSSES), reference, runs, not_run)


def judged(
    check: str, *runs: StrategyRun, node: Node | None = None, problems: Any = (), **not_run: Missing
) -> CheckResult:
    node = node or Node()
    strategies = tried(*runs, device="cuda" if node.gpus else "cpu", **not_run)
    return judge(f"strategy.{check}", node, measured(node, ranks=2, strategies=strategies, problems=problems))


def failures_of(result: CheckResult) -> list[Finding]:
    return [finding for finding in result.findings if finding.status is Status.FAIL]


@pytest.mark.parametrize("check", DATA)
def test_losses_and_weights_as_on_one_rank_pass_with_their_price(check: str) -> None:
    result = judged(check, run(check))
    expect(result, Status.PASS, "3 steps on 2 CPU ranks (gloo) as on one alone (step 6 ms", "0.00763 MiB exchanged")


def test_on_gpus_they_are_called_gpus_and_the_peak_is_what_a_rank_held() -> None:
    memory = msgspec.structs.replace(HALF, peak_bytes=3 << 20)
    result = judged("ddp", run("ddp", rank(0, memory=memory), rank(1, memory=memory)), node=Node(gpus=gpus(2)))
    assert "2 GPUs" in words(result)
    assert "CPU" not in words(result)
    assert "3 MiB a rank" in words(result)


@pytest.mark.parametrize("check", DATA)
def test_nothing_tried_and_nothing_reported_are_no_pass(check: str) -> None:
    assert judge(f"strategy.{check}", Node()).status is Status.SKIP
    assert judged(check).status is Status.UNKNOWN
    failed: Any = {check: Missing("rank 1: RuntimeError: no", "failed")}
    assert judged(check, **failed).status is Status.UNKNOWN
    not_offered: Any = {check: Missing("torch 2.4 does not offer it", "unsupported")}
    assert judged(check, **not_offered).status is Status.SKIP
    why = {"strategy": Missing("PyTorch is not installed", "absent")}
    expect(judge(f"strategy.{check}", Node(), Measurements(not_run=why)), Status.SKIP, "PyTorch is not installed")


@pytest.mark.parametrize("check", DATA)
def test_a_rank_that_did_not_report_is_unknown(check: str) -> None:
    result = judged(check, run(check, rank(0)))
    expect(result, Status.UNKNOWN, "1 of 2 ranks reported")
    assert Status.PASS not in {f.status for f in result.findings if f.found and "as on one alone" in f.found.text}


def test_only_ddp_answers_for_a_rank_that_died() -> None:
    died = ProbeProblem("strategy", "crash", "rank 1 died in strategy fsdp", 1)
    node = Node(gpus=gpus(2))
    assert judged("ddp", run("ddp"), node=node, problems=(died,)).status is Status.FAIL
    expect(judged("fsdp", node=node, problems=(died,)), Status.UNKNOWN, "see strategy.ddp")


@pytest.mark.parametrize(
    ("check", "variants", "status"),
    [
        ("zero1", ("zero1",), Status.PASS),
        ("fsdp", ("fsdp", "fsdp-bf16"), Status.PASS),
        ("fsdp", ("fsdp",), Status.UNKNOWN),  # it may be its second train that hung
    ],
)
def test_a_strategy_that_was_done_is_judged_though_a_later_one_hung(
    check: str, variants: tuple[str, ...], status: Status
) -> None:
    hung = ProbeProblem("strategy", "timeout", "rank 1 did not leave tensor step 6 within 180 s", 1)
    bf16 = [rank(n, losses=tuple(loss + 0.01 for loss in LOSSES)) for n in (0, 1)]
    runs = [run(variant, *(bf16 if variant.endswith("bf16") else ())) for variant in variants]
    assert judged(check, *runs, problems=(hung,)).status is status
    partly = [run(variant, rank(0)) for variant in variants]
    assert judged(check, *partly, problems=(hung,)).status is Status.UNKNOWN


def test_a_loss_that_deviates_in_one_step_fails_with_both_series() -> None:
    off = (LOSSES[0], LOSSES[1] + 0.01, LOSSES[2])
    result = judged("ddp", run("ddp", rank(0, losses=off), rank(1, losses=off)))
    expect(result, Status.FAIL, "off by 0.0025", "4.25 4.01 3.75", "4.25 4 3.75")


def test_long_steps_and_large_memory_are_told_without_exponents() -> None:
    memory = StrategyMemory(8000, 8000, 16000, 5000, peak_bytes=1234 << 20)
    told = words(judged("ddp", run("ddp", rank(0, step_ms=1234.0, memory=memory), rank(1)), node=Node(gpus=gpus(2))))
    assert "step 1.23 s" in told
    assert "1234 MiB a rank" in told


def test_what_rounding_does_to_losses_and_weights_passes_in_each_type() -> None:
    def rounded(share: float, base: float = 0.0) -> tuple[float, ...]:
        return tuple((loss + base) * (1 + share) for loss in LOSSES)

    fp32 = run("fsdp", *(rank(n, losses=rounded(9e-5), weights_error=9e-5) for n in (0, 1)))
    bf16 = run("fsdp-bf16", *(rank(n, losses=rounded(9e-3, 0.01), weights_error=9e-3) for n in (0, 1)))
    assert judged("fsdp", fp32, bf16).status is Status.PASS
    assert judged("fsdp", run("fsdp", *bf16.ranks)).status is Status.FAIL


def test_a_loss_that_is_not_finite_fails_in_the_step_where_it_began() -> None:
    result = judged("ddp", run("ddp", rank(0), rank(1, losses=(4.3, None, None))))
    expect(result, Status.FAIL, "no finite number in step 2")


def test_a_reference_that_was_not_finite_itself_convicts_nobody() -> None:
    alone = StrategyReference(2000, (4.25, None, None), LOSSES, 20.0, WHOLE)
    strategies = msgspec.structs.replace(tried(run("ddp")), reference=alone)
    expect(judge("strategy.ddp", Node(), measured(Node(), ranks=2, strategies=strategies)), Status.UNKNOWN)


def test_losses_of_fewer_steps_are_unknown() -> None:
    result = judged("ddp", run("ddp", rank(0, losses=LOSSES[:2]), rank(1, losses=LOSSES[:2])))
    expect(result, Status.UNKNOWN, "2 losses for 3 steps")


@pytest.mark.parametrize("error", [2e-4, None])
def test_one_ranks_weights_name_the_rank(error: float | None) -> None:
    expect(judged("ddp", run("ddp", rank(0), rank(1, weights_error=error))), Status.FAIL, "head.weight", rank=1)


def test_the_rank_whose_loss_was_wrong_first_is_named_though_all_are_wrong_after_it() -> None:
    right = ((4.2, 3.9, 3.7), (4.3, 4.1, 3.8))
    first = rank(0, losses=(4.2, 3.9, 3.9), weights_error=0.2, expected_losses=right[0])
    second = rank(1, losses=(4.3, 4.5, 4.1), weights_error=0.2, expected_losses=right[1])
    [finding] = failures_of(judged("fsdp", run("fsdp", first, second)))
    assert finding.subject.rank == 1
    assert "its loss in step 2 was 4.5, when the other ranks' were right" in present(finding.found).text


@pytest.mark.parametrize("second", [(4.3, 4.5, None), (4.3, None, None)])
def test_no_rank_is_named_where_all_go_wrong_in_the_same_step(second: tuple[float | None, ...]) -> None:
    first = rank(0, losses=(4.2, 3.5, 3.9), weights_error=0.2, expected_losses=(4.2, 3.9, 3.7))
    other = rank(1, losses=second, weights_error=0.2, expected_losses=(4.3, 4.1, 3.8))
    assert {finding.subject.kind for finding in failures_of(judged("fsdp", run("fsdp", first, other)))} == {"node"}


def test_what_rounding_does_to_one_ranks_loss_convicts_nobody_of_what_others_did() -> None:
    first = rank(0, expected_losses=rank(0).losses)
    second = rank(
        1, weights_error=0.2, expected_losses=tuple(4.0 if n is None else n * (1 + 9e-5) for n in rank(1).losses)
    )
    [finding] = failures_of(judged("fsdp", run("fsdp", first, second)))
    assert "its weights after the steps" in text_of(finding)


def test_weights_that_are_wrong_on_every_rank_accuse_none() -> None:
    result = judged("ddp", run("ddp", rank(0, weights_error=0.2), rank(1, weights_error=0.3)))
    finds(result.findings, Status.FAIL, "off by 0.3", kind="node")


def test_weights_that_no_rank_held_fail_and_a_rank_that_compared_none_is_unknown() -> None:
    assert judged("ddp", run("ddp", missing_weights=("head.weight",))).status is Status.FAIL
    assert judged("ddp", run("ddp", rank(0), rank(1, compared=0))).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("check", "part", "named"),
    [
        ("zero1", "optimizer", "optimizer's state"),
        ("fsdp", "optimizer", "optimizer's state"),
        ("fsdp", "parameters", "weights"),
        ("fsdp", "gradients", "gradients"),
    ],
)
def test_a_rank_that_holds_all_of_what_should_be_divided_fails(check: str, part: str, named: str) -> None:
    full = msgspec.structs.replace(HALF, **{f"{part}_bytes": getattr(WHOLE, f"{part}_bytes")})
    expect(judged(check, run(check, rank(0), rank(1, memory=full))), Status.FAIL, f"of the {named}")
    assert judged("ddp", run("ddp", rank(0, memory=WHOLE), rank(1, memory=WHOLE))).status is Status.PASS


def test_a_share_that_is_rounded_up_to_whole_rows_passes() -> None:
    more = StrategyMemory(4900, 4900, 9900, 2500)
    assert judged("fsdp", run("fsdp", rank(0, memory=more), rank(1))).status is Status.PASS


def test_data_parallel_is_one_process_and_says_how_it_compares_with_ddp() -> None:
    alone = rank(0, losses=LOSSES, step_ms=18.0, communicated_bytes=Missing("one process does it all"))
    figures = {"first_gpu_extra_bytes": float(5 << 20)}
    result = judged("dp", run("dp", alone, figures=figures), run("ddp"), node=Node(gpus=gpus(2)))
    expect(result, Status.PASS, "a step takes 3 x that of DDP and the first GPU holds 5 MiB more than the others")


def test_data_parallel_on_cpu_ranks_is_skipped_with_the_reason() -> None:
    assert judged("dp", dp=Missing("DataParallel spreads one process over GPUs")).status is Status.SKIP


def test_gpus_without_bf16_pass_by_fp32_alone_and_say_so() -> None:
    result = judged("fsdp", run("fsdp"), fsdp=Missing("mixed precision: a GPU here has no bf16", "unsupported"))
    expect(result, Status.PASS, "has no bf16")


@pytest.mark.parametrize(("mode", "status"), [("default", Status.UNKNOWN), ("exclusive-process", Status.SKIP)])
def test_a_second_process_that_a_gpu_refuses_is_explained_by_its_mode_alone(mode: Any, status: Status) -> None:
    """DataParallel on a node in exclusive mode, and on one with a GPU that refuses though it is in default mode."""
    node = Node(gpus=gpus(2, settings=Settings(compute_mode=mode)))
    refused = Missing("the GPU does not accept a process (CUDA error: busy or unavailable)", "denied")
    assert judged("dp", node=node, dp=refused).status is status
