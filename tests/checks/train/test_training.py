"""The train.* checks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.train.scaling import efficiency_factors
from gpudoctor.facts.model.gpu import Clocks, Gpu, GpuPair, GpuProcess, PcieLink, Power, Thermal
from gpudoctor.facts.model.measurements import (
    BucketStep,
    Launch,
    Measurements,
    ProbeProblem,
    RankInfo,
    Swap,
    Training,
    TrainRank,
)
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Telemetry
from tests.checks.one_check import blames, expect, gpu, gpus, judge, only, uuid_of, words
from tests.narrowed import present

SYNC, BALANCE, MEMORY, SCALING = "train.sync", "train.balance", "train.memory", "train.scaling"
ALL = (SYNC, BALANCE, MEMORY, SCALING)


def rank(number: int, compute_ms: float = 20.0, **facts: Any) -> TrainRank:
    defaults: dict[str, Any] = {
        "compute_mad_ms": 0.1,
        "compute_again_ms": compute_ms,
        "lateness_ms": 0.1,
        "last_in_share": 0.25,
        "wait_ms": 0.5,
        "data_ms": 0.1,
        "host_ms": 5.0,
        "step_ms": 25.0,
        "loss_first": 5.0,
        "loss_last": 3.0,
        "memory_peak_mib": 4000.0,
        "weights_sha256": "a" * 64,
    }
    return TrainRank(number, compute_ms, **{**defaults, **facts})


def slow(number: int, factor: float, **facts: Any) -> TrainRank:
    """A rank that really is slower: reproduced, and last in nearly every step."""
    defaults = {"last_in_share": 0.95, "lateness_ms": 20.0 * (factor - 1)}
    return rank(number, 20.0 * factor, **{**defaults, **facts})


def trained(*ranks: TrainRank, device: Any = "cuda", problems: Any = (), **facts: Any) -> Measurements:
    defaults: dict[str, Any] = {
        "world_size": len(ranks),
        "steps": 15,
        "batch_per_rank": 8,
        "parameters": 59_000_000,
        "gradient_bytes": 236_000_000,
        "clock_invariant_ok": True,
        "contribution_ok": True,
        "gradient_error": 3e-7,
        "solo_step_ms": 24.0,
    }
    training = Training(device=device, ranks=ranks, **{**defaults, **facts})
    on_cpu = device == "cpu"
    infos = tuple(
        RankInfo(r.rank, "cpu") if on_cpu else RankInfo(r.rank, "cuda", gpu=r.rank, uuid=uuid_of(r.rank)) for r in ranks
    )
    launch = Launch("gloo" if on_cpu else "nccl", len(ranks), infos)
    return Measurements(launch=launch, training=training, problems=problems)


FOUR = Node(gpus=gpus(4))
EVEN = tuple(rank(i) for i in range(4))


@pytest.mark.parametrize("check", [SYNC, BALANCE, MEMORY, SCALING])
def test_a_healthy_train_passes(check: str) -> None:
    assert judge(check, FOUR, trained(*EVEN)).status is Status.PASS


@pytest.mark.parametrize(
    ("kind", "status"), [("timeout", Status.FAIL), ("crash", Status.FAIL), ("error", Status.UNKNOWN)]
)
def test_a_rank_that_is_gone_is_told_by_sync_and_is_unknown_elsewhere(kind: Any, status: Status) -> None:
    gone = (ProbeProblem("train", kind, "no answer for 30 s", rank=2, phase="train step 12"),)
    lost = Measurements(launch=trained(*EVEN).launch, problems=gone)
    sync = judge(SYNC, FOUR, lost)
    assert (sync.status, sync.findings[0].subject.gpu) == (status, 2)
    assert "no answer for 30 s" in words(sync)
    for check in (BALANCE, MEMORY, SCALING):
        expect(judge(check, FOUR, lost), Status.UNKNOWN, "see train.sync")
        assert judge(check, FOUR, trained(*EVEN, problems=gone)).status is Status.UNKNOWN
    assert Status.PASS not in {f.status for f in judge(SYNC, FOUR, trained(*EVEN, problems=gone)).findings}


def test_a_rank_whose_weights_differ_is_named() -> None:
    expect(judge(SYNC, FOUR, trained(*EVEN[:3], rank(3, weights_sha256="b" * 64))), Status.FAIL, gpu=3)


def test_two_ranks_that_differ_blame_neither() -> None:
    result = judge(SYNC, Node(gpus=gpus(2)), trained(rank(0), rank(1, weights_sha256="b" * 64)))
    assert only(result, Status.FAIL).subject.kind == "node"


def test_weights_that_nobody_reported_are_unknown() -> None:
    assert judge(SYNC, FOUR, trained(rank(0), rank(1, weights_sha256=""))).status is Status.UNKNOWN


def test_ranks_that_did_not_report_are_unknown() -> None:
    assert judge(SYNC, FOUR, trained(*EVEN[:3], world_size=4)).status is Status.UNKNOWN
    assert judge(SYNC, FOUR, trained(world_size=4)).status is Status.UNKNOWN


def test_a_loss_that_is_not_finite_names_the_rank_where_it_began() -> None:
    spread = [rank(r, loss_last=None, nonfinite_step=8) for r in range(3)]
    result = judge(SYNC, FOUR, trained(*spread, rank(3, loss_last=None, nonfinite_step=7)))
    expect(result, Status.FAIL, "step 7", rank=3)


def test_a_gradient_that_could_not_be_compared_is_unknown() -> None:
    lost = Missing("not finite", "failed")
    assert judge(SYNC, FOUR, trained(*EVEN, gradient_error=lost)).status is Status.UNKNOWN


def test_a_loss_that_did_not_fall_fails() -> None:
    assert judge(SYNC, FOUR, trained(rank(0, loss_last=5.0), rank(1, loss_last=5.0))).status is Status.FAIL


@pytest.mark.parametrize(
    "facts", [{"contribution_ok": False}, {"gradient_error": 0.5}, {"gradient_error": float("nan")}]
)
def test_a_wrong_gradient_fails(facts: dict[str, Any]) -> None:
    assert judge(SYNC, FOUR, trained(*EVEN, **facts)).status is Status.FAIL


def test_cpu_ranks_are_judged_for_sync_and_named_as_such() -> None:
    result = judge(SYNC, Node(), trained(rank(0), rank(1), device="cpu"))
    expect(result, Status.PASS, "15 DDP steps on 2 CPU ranks (gloo)")


# balance


@pytest.mark.parametrize(
    ("factor", "status"), [(1.05, Status.PASS), (1.12, Status.WARN), (1.19, Status.WARN), (1.25, Status.FAIL)]
)
def test_a_confirmed_straggler_is_named(factor: float, status: Status) -> None:
    blames(judge(BALANCE, FOUR, trained(*EVEN[:3], slow(3, factor))), status, rank=3)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"last_in_share": 0.4}, "came last in 40% of the steps only"),
        ({"compute_again_ms": 20.0}, "a second block showed 1.00 x"),
        ({"compute_mad_ms": 4.0}, "within its own noise"),
    ],
)
def test_a_ratio_without_confirmation_is_too_noisy_to_judge(facts: dict[str, Any], why: str) -> None:
    measured = (*EVEN[:3], slow(3, 1.3, **facts))
    expect(judge(BALANCE, FOUR, trained(*measured)), Status.UNKNOWN, "too noisy to judge", why)


@pytest.mark.parametrize("clocks", [False, Missing("not measured")])
def test_clocks_that_do_not_agree_convict_nobody(clocks: Any) -> None:
    result = judge(BALANCE, FOUR, trained(*EVEN[:3], slow(3, 1.3), clock_invariant_ok=clocks))
    expect(result, Status.UNKNOWN, "clocks did not agree")


def test_a_difference_below_a_millisecond_is_no_straggler() -> None:
    tiny = [rank(i, 2.0) for i in range(3)]
    expect(judge(BALANCE, FOUR, trained(*tiny, rank(3, 2.5, last_in_share=0.95))), Status.UNKNOWN)


def test_two_ranks_name_the_slower_one() -> None:
    expect(judge(BALANCE, Node(gpus=gpus(2)), trained(rank(0), slow(1, 1.25))), Status.FAIL, gpu=1)


def test_one_rank_has_nobody_to_be_compared_with() -> None:
    for check in (BALANCE, MEMORY, SCALING):
        assert judge(check, Node(gpus=gpus(1)), trained(rank(0))).status is Status.SKIP


def test_gpus_are_compared_with_their_own_model_only() -> None:
    mixed = Node(gpus=(*gpus(2, "NVIDIA GeForce RTX 4090"), gpu(2, "NVIDIA GeForce RTX 4080")))
    expect(judge(BALANCE, mixed, trained(rank(0), rank(1), slow(2, 1.6))), Status.PASS, "the only GPU of its model")


def test_a_late_rank_that_computes_like_the_others_is_a_matter_of_its_host() -> None:
    late = rank(3, lateness_ms=6.0, last_in_share=1.0)
    result = judge(BALANCE, FOUR, trained(*EVEN[:3], late))
    warned = only(result, Status.WARN)
    assert warned.subject.rank == 3
    assert "5.9 ms after the others" in words(result)
    assert "held up on the host" in words(result)
    assert judge(BALANCE, FOUR, trained(*EVEN[:3], late, clock_invariant_ok=False)).status is Status.PASS


def test_a_rank_that_is_slow_only_in_the_second_block_is_no_pass() -> None:
    turning = rank(3, compute_again_ms=32.0)
    expect(judge(BALANCE, FOUR, trained(*EVEN[:3], turning)), Status.UNKNOWN, "a second block showed 1.60 x", rank=3)
    assert judge(BALANCE, FOUR, trained(*EVEN[:3], rank(3, compute_again_ms=21.5))).status is Status.PASS


# CPU ranks take turns on the cores: the median over the turns, and how sure it is

STEADY = (1.0, 1.01, 0.99, 1.005, 0.995, 1.0, 1.01, 0.99, 1.0, 1.0, 0.998, 1.002)


def turning(number: int, factor: float, noise: tuple[float, ...] = STEADY) -> TrainRank:
    return rank(number, 4.0 * factor, cycles_ms=tuple(4.0 * factor * n for n in noise))


def on_cpus(*ranks: TrainRank, **facts: Any) -> CheckResult:
    return judge(BALANCE, Node(), trained(*ranks, device="cpu", **{"rotated": True, **facts}))


@pytest.mark.parametrize(
    ("factor", "status"), [(1.05, Status.PASS), (1.12, Status.WARN), (1.18, Status.WARN), (1.25, Status.FAIL)]
)
@pytest.mark.parametrize("count", [2, 4])
def test_a_slow_cpu_rank_is_named_by_its_turns(factor: float, status: Status, count: int) -> None:
    result = on_cpus(*(turning(i, 1.0) for i in range(count - 1)), turning(count - 1, factor))
    blames(result, status, f"computes {factor:.2f} x as long", rank=count - 1)


def test_turns_that_do_not_agree_judge_nobody() -> None:
    wild = (0.7, 1.6, 0.8, 1.5, 1.4, 0.9, 1.3, 0.75, 1.45, 0.85, 1.2, 1.5)
    expect(on_cpus(turning(0, 1.0), turning(1, 1.0, wild)), Status.UNKNOWN, "too noisy to judge")


def test_a_cpu_rank_that_was_slow_only_at_first_is_not_convicted() -> None:
    early = (1.3,) * 7 + (1.0,) * 5
    assert on_cpus(turning(0, 1.0), turning(1, 1.0, early)).status is Status.UNKNOWN


@pytest.mark.parametrize("facts", [{"rotated": False}, {"rotated": True, "few": True}])
def test_cpu_ranks_that_took_no_turns_are_unknown(facts: dict[str, Any]) -> None:
    noise = STEADY[:5] if facts.pop("few", False) else STEADY
    expect(on_cpus(turning(0, 1.0, noise), turning(1, 1.5, noise), **facts), Status.UNKNOWN, "take turns")


def test_a_late_cpu_rank_is_the_schedulers_doing() -> None:
    late = [turning(0, 1.0), rank(1, 4.0, cycles_ms=STEADY, lateness_ms=6.0, last_in_share=1.0)]
    assert on_cpus(turning(0, 0.25), late[1]).status is Status.PASS


# data


@pytest.mark.parametrize(("data_ms", "status"), [(2.0, Status.PASS), (3.2, Status.WARN), (12.0, Status.FAIL)])
def test_a_rank_that_gets_its_batches_late_is_named_with_its_cause(data_ms: float, status: Status) -> None:
    late = rank(3, data_ms=data_ms, slowest_data_share=0.97)
    result = judge(BALANCE, FOUR, trained(*EVEN[:3], late))
    blames(result, status, "slow data", f"waits {data_ms:.1f} ms for each batch", rank=3)


@pytest.mark.parametrize("share", [0.5, Missing("not read")])
def test_late_batches_in_some_steps_only_convict_nobody(share: Any) -> None:
    late = rank(3, data_ms=12.0, slowest_data_share=share)
    assert judge(BALANCE, FOUR, trained(*EVEN[:3], late)).status is Status.PASS


def test_a_slow_gpu_is_not_taken_for_slow_data() -> None:
    result = judge(BALANCE, FOUR, trained(*EVEN[:3], slow(3, 1.3, data_ms=2.0, slowest_data_share=1.0)))
    assert "slow data" not in words(result)
    assert only(result, Status.FAIL).subject.rank == 3


# causes


def straggler_with(**facts: Any) -> CheckResult:
    peers: dict[str, Any] = {
        "clocks": Clocks(sm_mhz=1900, sm_max_mhz=1980, event_reasons=()),
        "power": Power(limit_w=700.0),
        "thermal": Thermal(gpu_c=50),
        "pcie": PcieLink(width=16),
    }
    odd: Gpu = gpu(3, **{**peers, **facts})
    node = Node(gpus=(*gpus(3, **peers), odd))
    return judge(BALANCE, node, trained(*EVEN[:3], slow(3, 1.3)))


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"clocks": Clocks(sm_mhz=900)}, "its clock is 900 MHz, the others have 1900"),
        ({"clocks": Clocks(sm_max_mhz=1200)}, "maximum clock is 1200 MHz"),
        ({"clocks": Clocks(event_reasons=("hw-power-brake",))}, "the power supply brakes it"),
        ({"clocks": Clocks(event_reasons=("hw-thermal", "idle"))}, "too hot"),
        ({"power": Power(limit_w=400.0)}, "its power limit is 400 W, the others have 700"),
        ({"thermal": Thermal(gpu_c=75)}, "it is at 75 C, the others at 50 C"),
        ({"pcie": PcieLink(width=4)}, "its PCIe width is 4 lanes"),
        ({}, "no reading explains it"),
    ],
)
def test_the_cause_of_a_straggler_is_joined_from_the_facts(facts: dict[str, Any], cause: str) -> None:
    expect(straggler_with(**facts), Status.FAIL, cause)


def test_a_gpu_that_others_compute_on_is_not_convicted() -> None:
    expect(straggler_with(processes=(GpuProcess(4711, kind="C"),)), Status.WARN, "pid 4711 computes on it too")
    expect(straggler_with(processes=(GpuProcess(1, is_own=True), GpuProcess(2, kind="G"))), Status.FAIL)


@pytest.mark.parametrize(
    ("there_ms", "partner_ms", "cause"),
    [(26.5, 20.0, "its process is slow on the host"), (20.1, 26.0, "the GPU itself is slow")],
)
def test_a_swap_of_gpus_tells_the_gpu_from_its_process(there_ms: float, partner_ms: float, cause: str) -> None:
    swap = Swap(3, 0, 26.0, 20.0, there_ms, partner_ms)
    result = judge(BALANCE, FOUR, trained(*EVEN[:3], slow(3, 1.3), swap=swap))
    assert cause in words(result)
    assert f"on the GPU of rank 0 it takes {there_ms:.2f} ms" in words(result)


def test_what_was_seen_under_load_is_the_cause() -> None:
    under_load = (
        *(GpuUnderLoad(i, uuid_of(i), 20, sampled_s=4.0) for i in range(3)),
        GpuUnderLoad(3, uuid_of(3), 20, event_share={"hw-power-brake": 0.92}, sampled_s=4.0),
    )
    measured = trained(*EVEN[:3], slow(3, 1.17))
    measured = msgspec.structs.replace(measured, telemetry=(Telemetry("train", 4.0, under_load),))
    result = judge(BALANCE, FOUR, measured)
    assert "HW power brake active 92 % of the time" in words(result)
    assert "computes 1.17 x as long" in words(result)


def test_a_host_bound_rank_blames_the_host() -> None:
    result = judge(BALANCE, FOUR, trained(*EVEN[:3], slow(3, 1.3, host_ms=25.0)))
    assert "the host is slow for this rank" in words(result)


def test_ranks_that_took_no_time_are_no_crash() -> None:
    assert judge(BALANCE, FOUR, trained(rank(0, 0.0), rank(1, 0.0))).status is Status.PASS


# memory


@pytest.mark.parametrize(("peak", "status"), [(4200.0, Status.PASS), (4300.0, Status.WARN), (3700.0, Status.WARN)])
def test_memory_may_differ_by_256_mib_on_a_small_model(peak: float, status: Status) -> None:
    blames(judge(MEMORY, FOUR, trained(*EVEN[:3], rank(3, memory_peak_mib=peak))), status, gpu=3)


def test_memory_may_differ_by_2_percent_on_a_large_one() -> None:
    big = [rank(i, memory_peak_mib=60_000.0) for i in range(3)]
    assert judge(MEMORY, FOUR, trained(*big, rank(3, memory_peak_mib=61_000.0))).status is Status.PASS
    assert judge(MEMORY, FOUR, trained(*big, rank(3, memory_peak_mib=61_500.0))).status is Status.WARN


def test_memory_that_was_not_read_is_said_by_rank() -> None:
    result = judge(MEMORY, FOUR, trained(*EVEN[:3], rank(3, memory_peak_mib=Missing("x", "failed"))))
    assert only(result, Status.UNKNOWN).subject.rank == 3
    nobody = [rank(i, memory_peak_mib=Missing("x")) for i in range(2)]
    assert judge(MEMORY, FOUR, trained(*nobody)).status is Status.SKIP


def test_cpu_ranks_have_no_gpu_memory() -> None:
    assert judge(MEMORY, Node(), trained(rank(0), rank(1), device="cpu")).status is Status.SKIP


# scaling


@pytest.mark.parametrize(
    ("count", "solo_ms", "status"),
    [
        (2, 24.0, Status.PASS),
        (2, 23.5, Status.WARN),
        (3, 23.5, Status.PASS),
        (3, 22.5, Status.WARN),
        (4, 22.1, Status.PASS),
        (4, 21.9, Status.WARN),
        (6, 21.3, Status.PASS),
        (8, 20.3, Status.PASS),
        (8, 20.0, Status.WARN),
        (16, 20.3, Status.PASS),
    ],
)
def test_efficiency_is_held_against_the_number_of_gpus(count: int, solo_ms: float, status: Status) -> None:
    measured = trained(*(rank(i) for i in range(count)), solo_step_ms=solo_ms)
    assert judge(SCALING, Node(gpus=gpus(count)), measured).status is status


def test_scaling_says_speed_up_and_gradient_size() -> None:
    text = words(judge(SCALING, FOUR, trained(*EVEN)))
    assert "3.84 x one rank, efficiency 96%" in text
    assert "236 MB" in text


def test_gpus_without_a_direct_path_are_reported_and_not_judged() -> None:
    def node(p2p: Any, nvlinks: int = 0) -> Node:
        return Node(gpus=gpus(2), pairs=(GpuPair(0, 1, p2p_read=p2p, nvlinks=nvlinks),))

    slow = trained(rank(0, step_ms=40.0), rank(1, step_ms=40.0), solo_step_ms=10.0)
    expect(judge(SCALING, node("CNS"), slow), Status.SKIP, "host memory")
    for direct in (node("OK"), node("NS", 18), node(Missing("not read"))):
        assert judge(SCALING, direct, slow).status is Status.WARN


def test_scaling_on_cpu_ranks_is_reported_only() -> None:
    result = judge(SCALING, Node(), trained(rank(0), rank(1), device="cpu", solo_step_ms=10.0))
    assert (result.status, "efficiency 40% (gradients of 236 MB a step), not judged" in words(result)) == (
        Status.SKIP,
        True,
    )


def test_scaling_without_a_solo_step_or_with_steps_of_no_time_is_no_pass() -> None:
    assert judge(SCALING, FOUR, trained(*EVEN, solo_step_ms=Missing("not run"))).status is Status.SKIP
    assert judge(SCALING, FOUR, trained(rank(0, step_ms=0.0), rank(1, step_ms=0.0))).status is Status.UNKNOWN


def test_the_plain_step_counts_where_it_was_measured() -> None:
    assert judge(SCALING, FOUR, trained(*EVEN, steady_step_ms=30.0)).status is Status.WARN
    assert judge(SCALING, FOUR, trained(*EVEN, steady_step_ms=24.5)).status is Status.PASS


def test_the_efficiency_is_taken_apart_exactly() -> None:
    ranks = (rank(0, 20.0, solo_compute_ms=18.0), rank(1, 25.0, solo_compute_ms=18.0))
    measured = trained(*ranks, solo_step_ms=20.0, steady_step_ms=32.0)
    split = present(efficiency_factors(present(measured.training), 20.0 / 32.0))
    assert split.concurrency == pytest.approx(18.0 / 22.5)
    assert split.balance == pytest.approx(22.5 / 25.0)
    assert split.communication == pytest.approx((25.0 / 32.0) / (18.0 / 20.0))
    assert split.concurrency * split.balance * split.communication == pytest.approx(20.0 / 32.0)
    text = words(judge(SCALING, Node(gpus=gpus(2)), measured))
    assert "concurrency 0.80 x balance 0.90 x communication 0.87" in text
    assert "each GPU computes slower while the others do" in text


# bucket


def buckets(*steps_ms: float) -> tuple[BucketStep, ...]:
    return tuple(BucketStep(size, ms) for size, ms in zip((1, 25, 100), steps_ms, strict=True))


@pytest.mark.parametrize(
    ("steps_ms", "said"), [((30, 25, 24.5), "does not matter here"), ((30, 25, 22), "bucket_cap_mb=100 saves 12%")]
)
def test_the_best_bucket_size_is_advice_and_no_fault(steps_ms: tuple[float, ...], said: str) -> None:
    expect(judge("train.bucket", FOUR, trained(*EVEN, buckets=buckets(*steps_ms))), Status.PASS, said)


def test_bucket_sizes_of_cpu_ranks_or_not_tried_are_not_judged() -> None:
    on_cpu = judge("train.bucket", Node(), trained(rank(0), rank(1), device="cpu", buckets=buckets(3, 2, 1)))
    expect(on_cpu, Status.SKIP, "25 MB 2.00 ms")
    assert judge("train.bucket", FOUR, trained(*EVEN)).status is Status.SKIP
