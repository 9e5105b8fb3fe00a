"""collective.pairs: the odd pair, or the GPU that the odd pairs share."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.gpu import GpuProcess, PcieLink, Settings
from gpudoctor.facts.model.measured_hardware import PeerLink
from gpudoctor.facts.model.measurements import Launch, Measurements, PairBandwidth, ProbeProblem, RankInfo
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from tests.checks.measured import launched
from tests.checks.one_check import blames, expect, gpus, judge, pairs, uuid_of, words

PAIRS = "collective.pairs"
SIZE = 64 * 2**20
HGX = Node(gpus=gpus(8), pairs=pairs(8, nvlinks=18, p2p_read="OK"))


def pair(a: int, b: int, gb_s: float, scatter: float = 0.01, **facts: Any) -> PairBandwidth:
    time_us = SIZE / gb_s / 1e3
    return PairBandwidth(a, b, SIZE, 60, time_us, time_us * scatter, gb_s, **facts)


def measured(count: int, *odd: PairBandwidth, usual: float = 300.0, **facts: Any) -> Measurements:
    """All pairs of this many ranks, slightly different, except for the odd ones."""
    special = {(p.a, p.b): p for p in odd}
    every = [special.get((a, b), pair(a, b, usual * (1 + (a - b) / 300))) for a, b in combinations(range(count), 2)]
    return Measurements(launch=launched(Node(gpus=gpus(count))), pairs=tuple(every), **facts)


def subjects(result: CheckResult) -> list[tuple[Any, ...]]:
    return [(f.status, f.subject.gpu if f.subject.kind == "gpu" else f.subject.gpus) for f in result.findings]


def test_cpu_ranks_are_reported_and_never_judged() -> None:
    odd = Measurements(launch=launched(Node(), 3), pairs=(pair(0, 1, 0.9), pair(0, 2, 0.1), pair(1, 2, 0.9)))
    expect(judge(PAIRS, HGX, odd), Status.SKIP, "3 CPU ranks (gloo): 3 pairs at 0.1 to 0.9 GB/s each way, not judged")


def test_alike_pairs_pass_with_their_span() -> None:
    expect(judge(PAIRS, HGX, measured(8)), Status.PASS, "28 pairs at 293 to 299 GB/s each way over NV18")


@pytest.mark.parametrize(("gb_s", "status"), [(275.0, Status.PASS), (260.0, Status.WARN), (215.0, Status.FAIL)])
def test_the_odd_pair_is_named(gb_s: float, status: Status) -> None:
    # the others' median is 297: warn below 267, fail below 223
    result = judge(PAIRS, HGX, measured(8, pair(2, 5, gb_s)))
    blames(result, status, "NVLinks of this path")
    if status is not Status.PASS:
        assert subjects(result) == [(status, (2, 5))]
        assert "gpudoctor's own choice" in str(result.findings[0].expected)


def test_a_gpu_that_is_in_every_slow_pair_is_named_itself() -> None:
    slow = [pair(min(3, i), max(3, i), 150.0) for i in range(8) if i != 3]
    result = judge(PAIRS, HGX, measured(8, *slow))
    assert subjects(result) == [(Status.FAIL, 3)]
    assert "slow to and from GPU 0, 1, 2, 4, 5, 6, 7" in words(result)
    assert len(result.findings[0].evidence) == 7


def test_among_three_gpus_the_one_with_two_slow_pairs_is_the_odd_one() -> None:
    node = Node(gpus=gpus(3), pairs=pairs(3, nvlinks=12))
    assert subjects(judge(PAIRS, node, measured(3, pair(0, 1, 100.0), pair(1, 2, 100.0)))) == [(Status.FAIL, 1)]


def test_slow_pairs_that_share_no_gpu_are_told_one_by_one() -> None:
    result = judge(PAIRS, HGX, measured(8, pair(0, 1, 100.0), pair(4, 7, 250.0)))
    assert subjects(result) == [(Status.FAIL, (0, 1)), (Status.WARN, (4, 7))]


def test_ranks_are_told_as_the_gpus_they_sat_on() -> None:
    ranks = tuple(RankInfo(i, "cuda", gpu=i, uuid=uuid_of(7 - i)) for i in range(8))
    moved = measured(8, pair(0, 1, 100.0))
    result = judge(PAIRS, HGX, Measurements(launch=Launch("nccl", 8, ranks), pairs=moved.pairs))
    assert subjects(result) == [(Status.FAIL, (6, 7))]


def pcie_node(path: Any, widths: tuple[int, ...] = (16, 16, 16, 16), p2p: Any = "OK") -> Node:
    made = [gpus(4, pcie=PcieLink(generation=4, generation_max=4, width=width))[i] for i, width in enumerate(widths)]
    return Node(gpus=tuple(made), pairs=pairs(4, path=path, p2p_read=p2p))


def test_only_paths_without_the_host_can_fail() -> None:
    slow = measured(4, pair(0, 1, 10.0), usual=24.0)
    assert judge(PAIRS, pcie_node("PIX"), slow).status is Status.FAIL
    assert judge(PAIRS, pcie_node("PIX", p2p="CNS"), slow).status is Status.WARN, "NCCL goes through host memory"
    assert judge(PAIRS, pcie_node("PIX", p2p=Missing("not shown")), slow).status is Status.WARN, "who knows"
    assert judge(PAIRS, pcie_node("SYS"), slow).status is Status.WARN


def test_what_cuda_said_of_peer_to_peer_wins_over_the_drivers_word() -> None:
    closed = tuple(PeerLink(a, b, SIZE, 10.0, p2p=False) for a in range(4) for b in range(4) if a != b)
    slow = measured(4, pair(0, 1, 10.0), usual=24.0, peer_links=closed)
    expect(judge(PAIRS, pcie_node("PIX"), slow), Status.WARN, "PIX, P2P off")


def test_a_narrow_slot_is_no_odd_pair() -> None:
    to_narrow = [pair(i, 3, 12.0) for i in range(3)]
    result = judge(PAIRS, pcie_node("PIX", (16, 16, 16, 8)), measured(4, *to_narrow, usual=24.0))
    assert [f.status for f in result.findings] == [Status.PASS, Status.PASS]


def test_bridged_pairs_are_not_compared_with_those_over_pcie() -> None:
    joined = tuple(
        p if {p.a, p.b} in ({0, 1}, {2, 3}) else q
        for p, q in zip(pairs(4, nvlinks=4), pairs(4, path="SYS", p2p_read="OK"), strict=True)
    )
    node = Node(gpus=gpus(4), pairs=joined)
    result = judge(PAIRS, node, measured(4, pair(0, 1, 50.0), pair(2, 3, 48.0), usual=9.0))
    assert [f.status for f in result.findings] == [Status.SKIP, Status.PASS]
    assert "2 pairs at 48 to 50 GB/s each way over NV4, not judged: too few" in words(result)


def test_a_pair_that_scatters_as_much_as_it_is_slow_is_unknown() -> None:
    result = judge(PAIRS, HGX, measured(8, pair(2, 5, 200.0, scatter=0.2)))
    expect(result, Status.UNKNOWN, "too noisy to judge")
    assert result.findings[0].subject.gpus == (2, 5)


def test_another_tenant_makes_a_slow_pair_unknown() -> None:
    busy = gpus(8, processes=(GpuProcess(4711, kind="C"),))
    node = Node(gpus=busy, pairs=HGX.pairs)
    expect(judge(PAIRS, node, measured(8, pair(2, 5, 100.0))), Status.UNKNOWN, "pid 4711")
    assert judge(PAIRS, node, measured(8)).status is Status.PASS


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (Settings(mig_enabled=True), "MIG"),
        (Settings(mig_enabled=False, confidential_compute=True), "confidential computing"),
    ],
)
def test_what_has_no_yardstick_is_skipped_with_the_figures(settings: Settings, why: str) -> None:
    node = Node(gpus=gpus(8, settings=settings), pairs=HGX.pairs)
    expect(judge(PAIRS, node, measured(8, pair(2, 5, 100.0))), Status.SKIP, why, "28 pairs at 100 to")


def test_pairs_that_time_did_not_suffice_for_are_said() -> None:
    some = measured(8)
    result = judge(PAIRS, HGX, Measurements(launch=some.launch, pairs=some.pairs[:20]))
    assert [f.status for f in result.findings] == [Status.SKIP, Status.PASS]
    assert "8 of 28 pairs were not measured" in words(result)


def test_pairs_of_gpus_that_are_not_known_are_never_a_pass() -> None:
    expect(judge(PAIRS, Node(), measured(3)), Status.UNKNOWN, "not known which GPU")


def test_a_wrong_result_is_left_to_its_own_check_and_is_no_pass_here() -> None:
    expect(judge(PAIRS, HGX, measured(8, pair(0, 1, 10.0, wrong_ranks=(1,)))), Status.PASS, "27 pairs")


def test_a_hang_beside_the_figures_is_not_forgotten() -> None:
    hung = ProbeProblem("collective", "timeout", "rank 2 did not leave", rank=2)
    expect(judge(PAIRS, HGX, measured(8, problems=(hung,))), Status.UNKNOWN, "see collective.correct")
    assert judge(PAIRS, HGX, Measurements(problems=(hung,))).status is Status.UNKNOWN


def test_configured_limits_win() -> None:
    slow = measured(8, pair(2, 5, 260.0))
    assert judge(PAIRS, HGX, slow, limit_overrides={(PAIRS, "warn_share", ""): 0.8}).status is Status.PASS
