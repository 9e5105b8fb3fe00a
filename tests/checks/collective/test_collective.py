"""The collective.* checks."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.collective.bandwidth import size_factor
from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.gpu import Gpu, GpuProcess, NvLink, PcieLink, Settings
from gpudoctor.facts.model.measurements import Collective, Launch, Measurements, PairBandwidth, ProbeProblem, RankInfo
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node, PciBus
from gpudoctor.profiles.profile import BusbwRow, GpuModel, NodeProfile, NvlinkSpec, Profile
from tests.checks.measured import measured
from tests.checks.one_check import expect, finds, gpu, gpus, judge, pairs, uuid_of, words

CORRECT, BANDWIDTH = "collective.correct", "collective.bandwidth"
MIB = 2**20


def all_reduce(busbw: float = 400.0, mib: int = 256, **facts: Any) -> Collective:
    defaults: dict[str, Any] = {"iterations": 20, "time_us": 100.0, "time_us_mad": 1.0, "algbw_gb_s": busbw / 1.75}
    return Collective("all_reduce", mib * MIB, "float32", busbw_gb_s=busbw, **{**defaults, **facts})


def on_gpus(count: int, *done: Collective, **facts: Any) -> Measurements:
    return measured(Node(gpus=gpus(count)), collectives=done, **facts)


def on_cpus(count: int, *done: Collective, **facts: Any) -> Measurements:
    return measured(Node(), ranks=count, collectives=done, **facts)


def problem(kind: Any, **facts: Any) -> ProbeProblem:
    defaults: dict[str, Any] = {"text": "it did not come back in 20 s", "rank": 1, "phase": "all_reduce of 64 MiB"}
    return ProbeProblem("collective", kind, **{**defaults, **facts})


HGX = Node(gpus=gpus(8), pairs=pairs(8, nvlinks=18, p2p_read="OK"))


def test_exact_sums_pass_and_say_on_what() -> None:
    result = judge(CORRECT, Node(), on_cpus(2, all_reduce(1.9, 1), all_reduce(1.9, 64)))
    expect(result, Status.PASS, "all_reduce of 1 MiB to 64 MiB exactly right on 2 CPU ranks (gloo)")
    assert "on 8 GPUs" in words(judge(CORRECT, HGX, on_gpus(8, all_reduce())))


def test_one_rank_proves_nothing() -> None:
    assert judge(CORRECT, HGX, on_gpus(1, all_reduce())).status is Status.SKIP


def test_a_rank_with_a_wrong_result_is_named_with_its_gpu() -> None:
    result = judge(CORRECT, HGX, on_gpus(8, all_reduce(), all_reduce(mib=64, wrong_ranks=(3,))))
    finds(result.findings, Status.FAIL, "wrong result of all_reduce 64 MiB", rank=3, gpu=3)


def test_a_missing_part_names_the_rank_that_did_not_give_it_and_nobody_else() -> None:
    result = judge(CORRECT, HGX, on_gpus(4, all_reduce(wrong_ranks=(0, 1, 2, 3), missing_ranks=(2,))))
    assert [f.subject.rank for f in result.findings] == [2]
    assert "its part was missing" in words(result)


def test_a_wrong_result_names_operation_size_and_rank() -> None:
    gathered = Collective("all_gather", 64 * MIB, "float32", 20, 100.0, 1.0, 5.0, 5.0, wrong_ranks=(2,))
    result = judge(CORRECT, HGX, on_gpus(8, all_reduce(), gathered))
    finds(result.findings, Status.FAIL, "it got a wrong result of all_gather 64 MiB", rank=2, gpu=2)


def test_a_wrong_result_between_two_ranks_names_the_one_that_got_it() -> None:
    pairs = (PairBandwidth(1, 6, 64 * MIB, 15, 100.0, 1.0, 300.0, wrong_ranks=(6,)),)
    result = judge(CORRECT, HGX, on_gpus(8, all_reduce(), pairs=pairs))
    assert [f.subject.rank for f in result.findings] == [6]
    assert "wrong result of sendrecv of ranks 1 and 6 64 MiB" in words(result)


def test_an_operation_that_the_backend_lacks_is_skipped_and_not_passed() -> None:
    lacking = {"reduce_scatter": Missing("Gloo does not support reduce_scatter", "unsupported")}
    result = judge(CORRECT, Node(), on_cpus(2, all_reduce(1.9, 1), not_run=lacking))
    statuses = [finding.status for finding in result.findings]
    assert statuses == [Status.SKIP, Status.PASS]
    assert "reduce_scatter: Gloo does not support reduce_scatter" in words(result)


def test_a_translating_iommu_is_the_likely_cause_of_wrong_sums() -> None:
    node = Node(gpus=gpus(2), pci=PciBus(iommu="translated"))
    assert "IOMMU" in words(judge(CORRECT, node, on_gpus(2, all_reduce(wrong_ranks=(1,)))))
    assert "broken build of torch" in words(judge(CORRECT, Node(), on_cpus(2, all_reduce(wrong_ranks=(1,)))))


@pytest.mark.parametrize(
    ("kind", "gpu_status", "cpu_status"),
    [
        ("timeout", Status.FAIL, Status.FAIL),
        ("crash", Status.FAIL, Status.FAIL),
        ("error", Status.UNKNOWN, Status.UNKNOWN),
        ("out-of-memory", Status.FAIL, Status.FAIL),
    ],
)
def test_a_problem_is_judged_by_its_kind_and_never_a_pass(kind: Any, gpu_status: Status, cpu_status: Status) -> None:
    odd = (problem(kind, waiting=(0, 2), output=("Traceback",)),)
    result = judge(CORRECT, HGX, on_gpus(8, all_reduce(), problems=odd))
    assert result.status is gpu_status
    assert result.findings[0].subject.rank == 1
    assert odd[0].text in words(result)
    assert judge(CORRECT, HGX, on_cpus(2, problems=odd)).status is cpu_status
    assert judge(BANDWIDTH, HGX, on_gpus(8, problems=odd)).status is Status.UNKNOWN


def test_cpu_ranks_that_are_all_slow_together_convict_nobody() -> None:
    slow = problem("timeout", rank=None)
    assert judge(CORRECT, HGX, on_cpus(2, problems=(slow,))).status is Status.UNKNOWN
    assert judge(CORRECT, HGX, on_gpus(8, problems=(slow,))).status is Status.FAIL


def test_a_launch_that_failed_as_a_whole_is_told_by_the_node() -> None:
    launch = ProbeProblem("launch", "timeout", "the ranks did not start in 60 s")
    result = judge(CORRECT, HGX, Measurements(problems=(launch,)))
    assert (result.status, result.findings[0].subject.kind) == (Status.UNKNOWN, "node")
    assert judge(BANDWIDTH, HGX, Measurements(problems=(launch,))).status is Status.UNKNOWN


@pytest.mark.parametrize("phase", ["start", "import torch"])
def test_torch_that_does_not_load_in_time_is_no_fault_of_a_gpu(phase: str) -> None:
    cold = ProbeProblem("launch", "timeout", "no rank left import torch within 120 s", phase=phase)
    assert judge(CORRECT, HGX, on_gpus(8, problems=(cold,))).status is Status.UNKNOWN
    joining = ProbeProblem("launch", "timeout", "no rank left join within 120 s", phase="join")
    assert judge(CORRECT, HGX, on_gpus(8, problems=(joining,))).status is Status.FAIL


def test_a_problem_of_the_train_is_none_of_the_collectives() -> None:
    train = ProbeProblem("train", "crash", "it died", rank=1)
    assert judge(CORRECT, HGX, on_gpus(8, all_reduce(), problems=(train,))).status is Status.PASS


# bandwidth

FACTORS = {"64": 0.7, "256": 0.8, "1024": 0.9}


def hgx_profile(uncertain: bool = False, factors: dict[str, float] = FACTORS) -> Profile:
    rows = (BusbwRow(8, 480.0, "Azure guide", uncertain), BusbwRow(4, 370.0, "ring"))
    node = NodeProfile("hgx-h100-8", "HGX H100", "h100-sxm", 8, all_reduce=rows, size_factor=factors)
    return Profile("hgx-h100-8", "name and count", node=node)


def test_cpu_ranks_are_reported_and_never_judged() -> None:
    result = judge(BANDWIDTH, HGX, on_cpus(2, all_reduce(1.9, 64)), profile=hgx_profile())
    expect(result, Status.SKIP, "2 CPU ranks (gloo): all_reduce 64 MiB at 1.9 GB/s busbw, not judged")


@pytest.mark.parametrize(
    ("busbw", "status"), [(423.0, Status.PASS), (346.0, Status.PASS), (340.0, Status.WARN), (280.0, Status.FAIL)]
)
def test_the_profile_judges_at_the_size_that_was_measured(busbw: float, status: Status) -> None:
    # 480 x 0.8 at 256 MiB = 384: warn below 345.6, fail below 288
    result = judge(BANDWIDTH, HGX, on_gpus(8, all_reduce(9.0, 16), all_reduce(busbw)), profile=hgx_profile())
    assert result.status is status
    assert "profile hgx-h100-8: Azure guide" in str(result.findings[0].expected)


def test_other_operations_are_evidence_beside_the_verdict_on_all_reduce() -> None:
    gathered = Collective("all_gather", 256 * MIB, "float32", 20, 100.0, 1.0, 5.0, 3.5)
    result = judge(BANDWIDTH, HGX, on_gpus(8, all_reduce(423.0), gathered), profile=hgx_profile())
    expect(result, Status.PASS, "all_gather 256 MiB: 3.5 GB/s busbw")


def test_configured_ratios_win_over_the_profile() -> None:
    measured = on_gpus(8, all_reduce(340.0))
    loose = judge(BANDWIDTH, HGX, measured, profile=hgx_profile(), limit_overrides={(BANDWIDTH, "warn_share", ""): 0.8})
    assert loose.status is Status.PASS


def test_uncertain_figures_only_warn() -> None:
    for profile in (hgx_profile(uncertain=True),):
        assert judge(BANDWIDTH, HGX, on_gpus(8, all_reduce(100.0)), profile=profile).status is Status.WARN
    no_curve = hgx_profile(factors={})
    assert judge(BANDWIDTH, HGX, on_gpus(8, all_reduce(100.0, 1024)), profile=no_curve).status is Status.WARN


def test_the_row_for_fewer_ranks_is_taken() -> None:
    assert judge(BANDWIDTH, HGX, on_gpus(4, all_reduce(300.0)), profile=hgx_profile()).status is Status.PASS


def test_between_two_sizes_the_factor_is_interpolated_on_a_log_scale() -> None:
    assert size_factor(FACTORS, 128 * MIB) == pytest.approx(0.75)
    assert size_factor(FACTORS, 256 * MIB) == pytest.approx(0.8)
    assert size_factor(FACTORS, 2**40) == 0.9
    assert size_factor(FACTORS, 32 * MIB) is None
    assert size_factor({}, 2**30) is None


@pytest.mark.parametrize(
    ("node", "count", "mib", "why"),
    [
        (HGX, 8, 1, "too small"),
        (HGX, 1, 256, "nothing to exchange"),
        (Node(), 2, 256, "which GPUs took part"),
        (Node(gpus=gpus(2, settings=Settings(mig_enabled=True))), 2, 256, "MIG"),
        (Node(gpus=gpus(2)), 2, 256, "neither a profile nor the links"),
    ],
)
def test_what_cannot_be_judged_is_skipped_with_the_figure(node: Node, count: int, mib: int, why: str) -> None:
    expect(judge(BANDWIDTH, node, on_gpus(count, all_reduce(5.0, mib))), Status.SKIP, why)


def pcie_node(count: int, width: int = 16, **pair: Any) -> Node:
    link = PcieLink(generation=1, generation_max=4, width=width)
    return Node(gpus=gpus(count, "NVIDIA GeForce RTX 4090", pcie=link), pairs=pairs(count, **pair))


@pytest.mark.parametrize(
    ("pair", "busbw", "status"),
    [
        ({"path": "PHB", "p2p_read": "CNS"}, 4.0, Status.PASS),  # single digits are normal without peer-to-peer
        ({"path": "PHB", "p2p_read": "CNS"}, 1.0, Status.WARN),
        ({"path": "SYS", "p2p_read": "OK"}, 4.0, Status.PASS),
        ({"path": "PIX", "p2p_read": "OK"}, 20.0, Status.PASS),
        ({"path": "PIX", "p2p_read": "OK"}, 5.0, Status.WARN),
        ({}, 4.0, Status.PASS),
    ],
)
def test_without_a_profile_the_slowest_link_gives_a_loose_bound_that_only_warns(
    pair: dict[str, Any], busbw: float, status: Status
) -> None:
    expect(judge(BANDWIDTH, pcie_node(4, **pair), on_gpus(4, all_reduce(busbw))), status, "loose bound")


def test_nvlinks_give_the_bound_where_all_pairs_are_joined() -> None:
    spec = NvlinkSpec(links=12, kind="bridge", version="4", gb_s_per_link=25.0, effective_gb_s=20.6)
    profile = Profile("gpu", "name", gpu=GpuModel("h100-nvl", ("h100 nvl",), nvlink=spec))
    links = tuple(NvLink(i, state="active") for i in range(12))
    node = Node(gpus=gpus(2, nvlinks=links), pairs=pairs(2, nvlinks=12))
    assert judge(BANDWIDTH, node, on_gpus(2, all_reduce(200.0)), profile=profile).status is Status.PASS
    expect(judge(BANDWIDTH, node, on_gpus(2, all_reduce(100.0)), profile=profile), Status.WARN, "fewest NVLinks")
    unlinked = Node(gpus=gpus(2), pairs=pairs(2, nvlinks=12))
    assert judge(BANDWIDTH, unlinked, on_gpus(2, all_reduce(100.0)), profile=profile).status is Status.SKIP


def busy(index: int) -> Gpu:
    return gpu(index, processes=(GpuProcess(4711, kind="C"), GpuProcess(1, kind="G"), GpuProcess(2, is_own=True)))


def test_another_tenant_makes_a_low_figure_unknown_and_leaves_a_good_one_alone() -> None:
    shared = Node(gpus=tuple(busy(i) for i in range(8)))
    low = judge(BANDWIDTH, shared, on_gpus(8, all_reduce(100.0)), profile=hgx_profile())
    expect(low, Status.UNKNOWN, "pid 4711 on GPU 0")
    assert judge(BANDWIDTH, shared, on_gpus(8, all_reduce(400.0)), profile=hgx_profile()).status is Status.PASS


def test_confidential_computing_is_not_judged_low() -> None:
    secret = Settings(mig_enabled=False, confidential_compute=True)
    node = Node(gpus=gpus(8, settings=secret))
    assert judge(BANDWIDTH, node, on_gpus(8, all_reduce(100.0)), profile=hgx_profile()).status is Status.SKIP


def test_figures_beside_a_hang_are_judged_and_the_hang_is_not_forgotten() -> None:
    measured = on_gpus(8, all_reduce(400.0), problems=(problem("timeout"),))
    assert judge(BANDWIDTH, HGX, measured, profile=hgx_profile()).status is Status.UNKNOWN


def test_a_gpu_is_found_by_uuid_and_not_by_the_ranks_own_number() -> None:
    ranks = (RankInfo(0, "cuda", gpu=0, uuid=uuid_of(5)), RankInfo(1, "cuda", gpu=1, bus_id="0000:12:00.0"))
    done = all_reduce(wrong_ranks=(0, 1))
    result = judge(CORRECT, HGX, Measurements(launch=Launch("nccl", 2, ranks), collectives=(done,)))
    assert [f.subject.gpu for f in result.findings] == [5, 2]
