"""The compute.* checks."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.gpu import Clocks, Ecc, GpuProcess, Power
from gpudoctor.facts.model.measured_hardware import ComputeRank, Gemm
from gpudoctor.facts.model.measurements import ProbeProblem
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Spread, Telemetry
from gpudoctor.profiles.load import gpu_models, profile_for
from tests.checks.measured import computed, measured, sampled
from tests.checks.one_check import blames, expect, gpu, gpus, judge, only, words
from tests.narrowed import present

GEMM, MEMORY, EXACT, PATTERN = "compute.gemm", "compute.memory", "compute.exact", "compute.pattern"
ALL = (GEMM, MEMORY, EXACT, PATTERN)
FOUR = Node(gpus=gpus(4))
ONE = Node(gpus=gpus(1))
EVEN = tuple(computed(rank) for rank in range(4))
CPU = Node()


def words_of(finding: Finding) -> str:
    return finding.found.text if finding.found else ""


def run(check: str, node: Node, *ranks: ComputeRank, **facts: Any) -> CheckResult:
    return judge(check, node, measured(node, compute=ranks, **facts), profile=profile_for(node))


def but(number: int, **facts: Any) -> tuple[ComputeRank, ...]:
    """Four healthy ranks, but for one."""
    return tuple(computed(rank, **facts) if rank == number else EVEN[rank] for rank in range(4))


@pytest.mark.parametrize("check", ALL)
def test_a_rank_without_figures_is_no_pass(check: str) -> None:
    assert run(check, FOUR, *EVEN[:3]).status is Status.UNKNOWN
    empty = run(check, FOUR, *EVEN[:3], ComputeRank(3)).findings
    assert {f.status for f in empty if f.subject.rank == 3} <= {Status.UNKNOWN, Status.SKIP}
    assert not [f for f in empty if f.subject.kind == "node" and "4 GPUs" in words_of(f)]


@pytest.mark.parametrize("check", ALL)
def test_a_healthy_node_passes(check: str) -> None:
    assert run(check, FOUR, *EVEN).status is Status.PASS
    assert run(check, ONE, EVEN[0]).status is Status.PASS


def test_a_rank_that_is_gone_is_judged_by_exact_and_unknown_to_the_others() -> None:
    gone = (ProbeProblem("compute", "crash", "rank 2 died", rank=2, phase="bf16 matrix products"),)
    lost = measured(FOUR, problems=gone)
    exact = judge(EXACT, FOUR, lost)
    assert (exact.status, exact.findings[0].subject.gpu) == (Status.FAIL, 2)
    for check in (GEMM, MEMORY, PATTERN):
        expect(judge(check, FOUR, lost), Status.UNKNOWN, "see compute.exact")
        assert run(check, FOUR, *EVEN, problems=gone).status is Status.UNKNOWN
    assert Status.PASS not in {f.status for f in run(EXACT, FOUR, *EVEN, problems=gone).findings}


@pytest.mark.parametrize(("tflops", "status"), [(680.0, Status.PASS), (655.0, Status.WARN), (600.0, Status.FAIL)])
def test_a_gpu_slower_than_its_siblings_is_named(tflops: float, status: Status) -> None:
    blames(run(GEMM, FOUR, *but(2, tflops=tflops)), status, "no reading explains it", gpu=2)


def test_what_was_sampled_under_load_is_the_cause() -> None:
    load = (sampled("compute", [{"sm_mhz": mhz} for mhz in (1700.0, 1700.0, 1300.0, 1700.0)]),)
    result = run(GEMM, FOUR, *but(2, tflops=560.0), telemetry=load)
    assert "its clock was 1300 MHz under load" in (only(result, Status.FAIL).likely or "")


def test_a_lower_power_limit_and_strangers_are_no_failure() -> None:
    lower = gpu(2, power=Power(limit_w=500.0, default_limit_w=700.0))
    node = Node(gpus=(*FOUR.gpus[:2], lower, FOUR.gpus[3]))
    finding = only(run(GEMM, node, *but(2, tflops=560.0)), Status.WARN)
    assert "its power limit is set to 500 W" in (finding.likely or "")
    held = gpu(2, clocks=Clocks(event_reasons=("application-clocks",)))
    slowed = Node(gpus=(*FOUR.gpus[:2], held, FOUR.gpus[3]))
    assert run(GEMM, slowed, *but(2, tflops=560.0)).status is Status.WARN
    used = gpu(2, processes=(GpuProcess(99, kind="C"),))
    shared = Node(gpus=(*FOUR.gpus[:2], used, FOUR.gpus[3]))
    assert run(GEMM, shared, *but(2, tflops=560.0)).status is Status.UNKNOWN


def test_laps_that_differ_more_than_the_shortfall_convict_nobody() -> None:
    noisy = (Gemm("bf16", 8192, 650.0, 40.0),)
    expect(run(GEMM, FOUR, *but(2, gemms=noisy)), Status.UNKNOWN, gpu=2)


@pytest.mark.parametrize(("tflops", "status"), [(640.0, Status.PASS), (600.0, Status.WARN), (400.0, Status.FAIL)])
def test_one_gpu_is_judged_by_the_best_that_its_model_reached(tflops: float, status: Status) -> None:
    assert run(GEMM, ONE, computed(0, tflops=tflops)).status is status


@pytest.mark.parametrize(
    ("limit_w", "share", "heat", "status"),
    [
        (700.0, 0.9, 0.0, Status.PASS),  # at its usual limit, at 75 % of its clock: as fast as that allows
        (700.0, 0.2, 0.0, Status.WARN),  # its clock is low for another reason
        (700.0, 0.9, 0.1, Status.WARN),  # heat slowed it as well
        (500.0, 0.9, 0.0, Status.WARN),  # its limit was lowered
    ],
)
def test_a_gpu_at_its_usual_power_limit_is_judged_by_the_clock_that_is_left(
    limit_w: float, share: float, heat: float, status: Status
) -> None:
    node = Node(gpus=gpus(1, power=Power(limit_w=limit_w, default_limit_w=700.0), clocks=Clocks(sm_max_mhz=1980)))
    events = {"sw-power-cap": share, **({"sw-thermal": heat} if heat else {})}
    spread = Spread(1485.0, 1485.0, 1485.0)
    load = GpuUnderLoad(0, known(node.gpus[0].uuid), 20, readings={"sm_mhz": spread}, event_share=events)
    expect(run(GEMM, node, computed(0, tflops=560.0), telemetry=(Telemetry("compute", 4.0, (load,)),)), status)
    if status is Status.PASS:
        slower = run(GEMM, node, computed(0, tflops=400.0), telemetry=(Telemetry("compute", 4.0, (load,)),))
        expect(slower, Status.WARN, "at the 75% of its clock that its own power limit left")


def test_small_products_are_compared_with_siblings_only() -> None:
    small = (Gemm("bf16", 2048, 200.0, 0.1),)
    assert run(GEMM, ONE, computed(0, gemms=small)).status is Status.SKIP


def test_an_explained_or_uncertain_shortfall_of_the_model_never_fails() -> None:
    hot = Node(gpus=gpus(1, clocks=Clocks(event_reasons=("hw-thermal",))))
    assert run(GEMM, hot, computed(0, tflops=400.0)).status is Status.WARN
    uncertain = Node(gpus=gpus(1, "NVIDIA A100-SXM4-40GB", memory_total_mib=40960))
    assert run(GEMM, uncertain, computed(0, tflops=100.0)).status is Status.WARN


@pytest.mark.parametrize(("tflops", "status"), [(25.0, Status.PASS), (12.0, Status.WARN), (2.0, Status.WARN)])
def test_by_the_data_sheet_alone_nothing_fails(tflops: float, status: Status) -> None:
    node = Node(gpus=gpus(1, "Tesla T4", memory_total_mib=15360))
    assert run(GEMM, node, computed(0, gemms=(Gemm("fp16", 8192, tflops, 0.1),))).status is status


def test_a_mixed_node_is_compared_within_its_models() -> None:
    mixed = Node(gpus=(gpu(0), gpu(1, "NVIDIA A100-SXM4-80GB", memory_total_mib=81920), gpu(2), gpu(3)))
    ranks = but(1, tflops=240.0, copy_gb_s=1600.0, triad_gb_s=1700.0, fingerprints=("b" * 64,) * 5)
    for check in (GEMM, MEMORY, EXACT):
        assert Status.FAIL not in {f.status for f in run(check, mixed, *ranks).findings}
    unheard_of = Node(gpus=(*gpus(3), gpu(3, "NVIDIA X9000", memory_total_mib=1234)))
    assert only(run(GEMM, unheard_of, *EVEN), Status.SKIP).subject.gpu == 3


@pytest.mark.parametrize(("gb_s", "status"), [(2650.0, Status.PASS), (2400.0, Status.WARN), (2000.0, Status.FAIL)])
def test_memory_is_judged_by_the_data_sheet(gb_s: float, status: Status) -> None:
    assert run(MEMORY, ONE, computed(0, copy_gb_s=gb_s - 100, triad_gb_s=gb_s)).status is status


@pytest.mark.parametrize(("share", "status"), [(0.96, Status.PASS), (0.93, Status.WARN), (0.88, Status.FAIL)])
def test_memory_slower_than_the_siblings_is_named_where_copy_and_triad_agree(share: float, status: Status) -> None:
    both = but(1, copy_gb_s=2850.0 * share, triad_gb_s=2950.0 * share)
    blames(run(MEMORY, FOUR, *both), status, gpu=1)
    assert run(MEMORY, FOUR, *but(1, copy_gb_s=2850.0 * share)).status is Status.PASS


def test_ecc_within_the_memory_itself_takes_its_part() -> None:
    for ecc, status in ((True, Status.PASS), (False, Status.WARN)):
        node = Node(gpus=gpus(1, "NVIDIA L40S", memory_total_mib=46068, ecc=Ecc(enabled=ecc)))
        assert run(MEMORY, node, computed(0, copy_gb_s=600.0, triad_gb_s=610.0)).status is status


def test_an_uncertain_bandwidth_never_fails_and_a_missing_one_is_said() -> None:
    node = Node(gpus=gpus(1, "NVIDIA H20-3e", memory_total_mib=143771))
    assert run(MEMORY, node, computed(0, copy_gb_s=1000.0, triad_gb_s=1000.0)).status is Status.WARN
    unread = run(MEMORY, FOUR, *but(3, copy_gb_s=Missing("no memory for three buffers", "failed")))
    assert "no memory for three buffers" in (only(unread, Status.UNKNOWN).reason or "")


def test_cpu_ranks_are_printed_and_not_judged_for_speed() -> None:
    slow = (computed(0), computed(1, tflops=0.01, copy_gb_s=1.0, triad_gb_s=1.0))
    for check in (GEMM, MEMORY):
        expect(run(check, CPU, *slow), Status.SKIP, "2 CPU ranks (gloo)", "not judged")


@pytest.mark.parametrize("node", [FOUR, CPU])
def test_bits_that_change_from_repeat_to_repeat_name_the_rank(node: Node) -> None:
    shaky = ("a" * 64, "a" * 64, "c" * 64, "a" * 64, "a" * 64)
    ranks = but(1, fingerprints=shaky)[: 4 if node.gpus else 2]
    result = run(EXACT, node, *ranks)
    assert only(result, Status.FAIL).subject.rank == 1
    assert Status.PASS not in {f.status for f in result.findings if f.subject.kind == "node"}


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_rank_that_differs_from_most_is_named(ranks: int) -> None:
    result = run(EXACT, FOUR, *but(2, fingerprints=("b" * 64,) * 5)[:ranks], ranks=ranks)
    assert [f.subject.rank for f in result.findings] == [2]
    assert only(result, Status.FAIL).subject.gpu == 2


def test_two_that_differ_are_both_named_and_neither_is_convicted() -> None:
    result = run(EXACT, CPU, computed(0), computed(1, fingerprints=("b" * 64,) * 5))
    finding = only(result, Status.FAIL)
    assert finding.subject.kind == "node"
    assert "rank 0" in present(finding.found).text
    assert "rank 1" in present(finding.found).text
    halves = (*EVEN[:2], *(computed(r, fingerprints=("b" * 64,) * 5) for r in (2, 3)))
    assert only(run(EXACT, FOUR, *halves), Status.FAIL).subject.kind == "node"


def test_gpus_with_other_numbers_of_multiprocessors_are_not_compared() -> None:
    ranks = but(2, fingerprints=("b" * 64,) * 5, multiprocessors=114)
    assert run(EXACT, FOUR, *ranks).status is Status.PASS


def test_one_gpu_says_what_it_cannot_tell() -> None:
    assert "cannot be told" in words(run(EXACT, ONE, computed(0)))
    assert run(EXACT, ONE, computed(0, fingerprints=("a" * 64,))).status is Status.UNKNOWN


@pytest.mark.parametrize("node", [FOUR, CPU])
def test_a_byte_that_memory_lost_fails_its_rank(node: Node) -> None:
    ranks = but(1, pattern_wrong_bytes=2)[: 4 if node.gpus else 2]
    result = run(PATTERN, node, *ranks)
    assert only(result, Status.FAIL).subject.rank == 1
    assert Status.PASS not in {f.status for f in result.findings}


@pytest.mark.parametrize(
    "facts",
    [
        {"pattern_passes": 0},
        {"pattern_bytes": 0},
        {"pattern_bytes": Missing("x", "failed")},
        {"pattern_wrong_bytes": Missing("x", "failed")},
    ],
)
def test_memory_that_was_not_compared_is_unknown(facts: dict[str, Any]) -> None:
    assert run(PATTERN, FOUR, *but(0, **facts)).status is Status.UNKNOWN


def test_the_profiles_know_rates_of_the_models_that_train() -> None:
    models = gpu_models()
    assert models["h100-sxm"].achieved_bf16_tflops == 794.5
    assert models["a100-sxm4-80gb"].achieved_bf16_tflops == 271.2
    assert (models["t4"].fp16_tflops, models["t4"].inline_ecc) == (65, True)
    assert not any(m.inline_ecc for m in models.values() if m.ecc == "no" or "HBM" in m.name)
    for model in models.values():
        rates = [model.achieved_bf16_tflops, model.bf16_tflops]
        assert None in rates or rates[0] < rates[1], model.name  # type: ignore[operator]


def test_a_configured_limit_is_in_force_and_named() -> None:
    strict = {(GEMM, "peer_warn_share", ""): 0.99}
    case = measured(FOUR, compute=but(1, tflops=710.0))
    result = judge(GEMM, FOUR, case, profile=profile_for(FOUR), limit_overrides=strict)
    finding = only(result, Status.WARN)
    assert present(finding.expected).source == "configuration"
    assert replace(finding, status=Status.PASS).subject.gpu == 1


def test_gpus_that_the_facts_do_not_hold_convict_nobody_for_speed() -> None:
    apart = Node(gpus=(gpu(7), gpu(8)))
    slow = measured(FOUR, compute=but(2, tflops=100.0, copy_gb_s=100.0, triad_gb_s=100.0))
    for check in (GEMM, MEMORY):
        assert {f.status for f in judge(check, apart, slow).findings} == {Status.UNKNOWN}
    odd = measured(FOUR, compute=but(2, fingerprints=("b" * 64,) * 5))
    assert judge(EXACT, apart, odd).status is Status.PASS


def test_a_rate_of_a_type_that_no_profile_knows_is_not_judged() -> None:
    fp32 = (Gemm("fp32", 8192, 60.0, 0.1),)
    assert run(GEMM, ONE, computed(0, gemms=fp32)).status is Status.SKIP
    sheetless = Node(gpus=gpus(1, "Tesla P100-SXM2-16GB", memory_total_mib=16280))
    assert run(GEMM, sheetless, computed(0, gemms=(Gemm("fp16", 8192, 18.0, 0.1),))).status is Status.SKIP
