"""The link.* checks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.gpu import GpuProcess, PcieHop, PcieLink, Settings
from gpudoctor.facts.model.measured_hardware import HostLink
from gpudoctor.facts.model.measurements import Measurements, ProbeProblem
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Host, Node
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Spread, Telemetry
from gpudoctor.profiles.load import profile_for
from tests.checks.measured import copied, matrix, measured, sampled
from tests.checks.one_check import expect, gpu, gpus, judge, only, pairs, uuid_of, words
from tests.checks.simulated_nodes import packaged
from tests.narrowed import present

HOST, PEER = "link.host", "link.peer"
GEN5 = PcieLink(generation=5, generation_max=5, width=16, width_max=16)
FOUR = Node(gpus=gpus(4, pcie=GEN5), pairs=pairs(4, nvlinks=18))
ONE = Node(gpus=gpus(1, pcie=PcieLink(generation=4, generation_max=4, width=16)))


def host(node: Node, *links: HostLink, **facts: Any) -> CheckResult:
    return judge(HOST, node, measured(node, host_links=links, **facts), profile=profile_for(node))


def peer(node: Node, links: Any, **facts: Any) -> CheckResult:
    return judge(PEER, node, measured(node, peer_links=links, **facts), profile=profile_for(node))


@pytest.mark.parametrize("kind", ["timeout", "crash"])
def test_a_rank_that_is_gone_is_judged_by_the_host_check_and_unknown_to_the_other(kind: Any) -> None:
    gone = (ProbeProblem("link", kind, "no answer for 30 s", rank=2, phase="copies"),)
    told = judge(HOST, FOUR, measured(FOUR, problems=gone))
    assert (told.status, told.findings[0].subject.gpu) == (Status.FAIL, 2)
    expect(judge(PEER, FOUR, measured(FOUR, problems=gone)), Status.UNKNOWN, "see link.host")
    assert peer(FOUR, matrix(4, 380.0), problems=gone).status is Status.UNKNOWN


def test_healthy_links_pass_one_by_one() -> None:
    result = host(FOUR, *copied(52.0, 55.4, 51.0, 53.0))
    assert [f.status for f in result.findings] == [Status.PASS] * 4
    assert [f.subject.gpu for f in result.findings] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("generation", "width", "gb_s", "status"),
    [
        (3, 16, 11.5, Status.PASS),
        (3, 16, 9.0, Status.FAIL),
        (4, 16, 26.0, Status.PASS),
        (4, 16, 21.0, Status.WARN),
        (4, 16, 18.0, Status.FAIL),
        (4, 8, 13.0, Status.PASS),
        (5, 16, 40.0, Status.WARN),
        (6, 16, 50.0, Status.WARN),
    ],
)
def test_a_rate_is_judged_by_what_generation_and_lanes_carry(
    generation: int, width: int, gb_s: float, status: Status
) -> None:
    node = Node(gpus=gpus(1, pcie=PcieLink(generation=generation, generation_max=generation, width=width)))
    expect(host(node, *copied(gb_s)), status, f"PCIe Gen{generation} x{width}")


def test_the_slower_direction_counts() -> None:
    assert host(ONE, HostLink(0, 256 << 20, 26.0, 6.3)).status is Status.FAIL


@pytest.mark.parametrize(("gb_s", "status"), [(25.0, Status.WARN), (15.0, Status.FAIL), (50.0, Status.PASS)])
def test_a_guest_is_convicted_only_of_far_less_than_its_link_carries(gb_s: float, status: Status) -> None:
    """A VM on a cloud, 8 x H100 at 25 GB/s of 63: a vIOMMU, or host memory of the other socket, not the link."""
    vm = msgspec.structs.replace(FOUR, host=Host(virtualization="vm"))
    links = copied(*[gb_s] * 4)
    assert host(vm, *links).status is status
    if gb_s == 25.0:
        assert host(FOUR, *links).status is Status.FAIL


def test_one_gpu_slower_than_the_others_on_equal_links_stands_out() -> None:
    result = host(FOUR, *copied(56.0, 56.0, 46.5, 56.0))
    finding = only(result, Status.WARN)
    assert finding.subject.gpu == 2
    assert "the others of this model reach" in present(finding.expected).text


def test_an_idle_link_is_judged_by_what_it_can_come_up_to() -> None:
    idle = PcieLink(generation=1, generation_max=4, width=16)
    assert host(Node(gpus=gpus(1, pcie=idle)), *copied(26.0)).status is Status.PASS


def test_the_generation_under_load_is_what_the_rate_is_judged_by() -> None:
    load = (sampled("link", [{"pcie_generation": 3.0, "pcie_width": 16.0}]),)
    result = host(ONE, *copied(12.5), telemetry=load)
    finding = only(result, Status.WARN)
    assert "PCIe Gen3 x16 under load" in present(finding.found).text
    assert "Gen4, which GPU and slot can do" in words(result)


def test_a_sample_taken_at_rest_is_disproved_by_the_rate() -> None:
    load = (sampled("link", [{"pcie_generation": 1.0, "pcie_width": 16.0}]),)
    assert host(ONE, *copied(26.0), telemetry=load).status is Status.PASS


def test_a_link_that_stays_low_where_its_siblings_come_up_fails() -> None:
    rest = PcieLink(generation=1, generation_max=4, width=16, path=(PcieHop("a"), PcieHop("b")))
    node = Node(gpus=gpus(3, pcie=rest), host=Host(virtualization="none"))
    load = (sampled("link", [{"pcie_generation": g, "pcie_width": 16.0} for g in (4.0, 1.0, 4.0)]),)
    assert only(host(node, *copied(26.0, 3.3, 26.0), telemetry=load), Status.FAIL).subject.gpu == 1
    hidden = Node(gpus=gpus(3, pcie=rest), host=Host(virtualization="vm"))
    assert only(host(hidden, *copied(26.0, 3.3, 26.0), telemetry=load), Status.WARN).subject.gpu == 1


def test_bytes_that_come_back_changed_fail_however_fast() -> None:
    result = host(FOUR, *copied(52.0, 52.0), *(HostLink(2, 256 << 20, 52.0, 52.0, wrong_bytes=3),), *copied()[3:])
    expect(result, Status.FAIL, "3 bytes", gpu=2)


def test_a_copy_from_another_socket_never_fails_and_says_so() -> None:
    expect(host(ONE, *copied(12.0, near_cpus=False)), Status.WARN, "crossed from another CPU socket")


def test_replays_while_copying_are_named_as_the_cause() -> None:
    load = (sampled("link", [{"pcie_generation": 4.0}], counters={"pcie_replays": 812}),)
    expect(host(ONE, *copied(15.0), telemetry=load), Status.FAIL, "the link repeats packets")


def test_a_gpu_that_others_use_is_not_convicted() -> None:
    used = (GpuProcess(99, kind="C"),)
    node = Node(gpus=gpus(1, pcie=PcieLink(generation=4, generation_max=4, width=16), processes=used))
    assert host(node, *copied(10.0)).status is Status.UNKNOWN
    assert host(node, *copied(26.0)).status is Status.PASS


def test_confidential_computing_is_skipped_and_an_unknown_gpu_is_unknown() -> None:
    secret = Settings(mig_enabled=False, confidential_compute=True)
    node = Node(gpus=gpus(1, pcie=GEN5, settings=secret))
    assert host(node, *copied(4.0)).status is Status.SKIP
    stranger = Measurements(launch=measured(FOUR).launch, host_links=copied(52.0))
    assert judge(HOST, Node(gpus=gpus(1, uuid="GPU-other")), stranger).status is not Status.PASS


def test_grace_is_compared_with_its_peers_only() -> None:
    tray = packaged("gb200-tray-4")
    assert [f.status for f in host(tray, *copied(350.0, 345.0, 352.0, 349.0)).findings] == [Status.PASS] * 4
    assert only(host(tray, *copied(350.0, 345.0, 180.0, 349.0)), Status.FAIL).subject.gpu == 2
    alone = packaged("gh200-1")
    assert host(alone, *copied(350.0)).status is Status.SKIP


def test_a_rank_without_figures_is_unknown() -> None:
    expect(host(FOUR, *copied(52.0, 52.0, 52.0)), Status.UNKNOWN, gpu=3)


def test_all_at_once_is_information_with_those_who_share_the_way() -> None:
    def below(switch: str, index: int) -> Any:
        path = (PcieHop(f"0000:{0x10 + index:02x}:00.0"), PcieHop(switch))
        return gpu(index, pcie=PcieLink(generation=4, generation_max=4, width=16, path=path))

    node = Node(gpus=(below("s", 0), below("s", 1), below("t", 2)))
    links = copied(26.0, 26.0, 26.0, h2d_together_gb_s=13.0, d2h_together_gb_s=13.1)
    result = host(node, *links)
    assert result.status is Status.PASS
    shown = [next(e.value for e in f.evidence if e.source == "all GPUs at once") for f in result.findings]
    assert "shares its way to the host with GPU 1" in shown[0]
    assert "shares" not in shown[2]


@pytest.mark.parametrize("name", ["hgx-h100-8", "dgx-a100-8", "l40s-8", "rtx4090-4", "t4-cloud-4", "dgx1-v100-8"])
def test_the_copies_of_a_healthy_node_pass(name: str) -> None:
    node = packaged(name)
    typical = {3: 12.3, 4: 25.9, 5: 52.0}
    rates = [typical[g.pcie.generation_max] * g.pcie.width / 16 for g in node.gpus]  # type: ignore[index,operator]
    assert host(node, *copied(*rates)).status is Status.PASS
    between = {(p.a, p.b): 22.0 * (known(p.nvlinks) or 1) for p in known(node.pairs) or ()}  # 25 GB/s a link
    both = {**between, **{(b, a): rate for (a, b), rate in between.items()}}
    statuses = {f.status for f in peer(node, matrix(len(node.gpus), 0.0, both)).findings}
    assert Status.PASS in statuses
    assert statuses <= {Status.PASS, Status.SKIP}


def test_nvlink_pairs_pass_at_what_copies_reach() -> None:
    expect(peer(FOUR, matrix(4, 380.0)), Status.PASS, "6 pairs over NV18")


@pytest.mark.parametrize(("gb_s", "status"), [(330.0, Status.WARN), (200.0, Status.FAIL)])
def test_all_nvlink_pairs_are_judged_by_the_line_rate(gb_s: float, status: Status) -> None:
    expect(peer(FOUR, matrix(4, gb_s)), status, "of the 450 GB/s that their 18 NVLinks carry")


def test_an_uncertain_line_rate_never_fails() -> None:
    node = Node(gpus=gpus(2, "NVIDIA H200 NVL", memory_total_mib=143771), pairs=pairs(2, nvlinks=18))
    assert peer(node, matrix(2, 200.0)).status is Status.WARN


def test_one_slow_pair_is_named() -> None:
    expect(peer(FOUR, matrix(4, 380.0, {(1, 3): 200.0})), Status.FAIL, gpus=(1, 3))
    assert only(peer(FOUR, matrix(4, 390.0, {(1, 3): 345.0})), Status.WARN).subject.gpus == (1, 3)


def test_a_gpu_that_is_slow_to_all_others_is_one_finding() -> None:
    slow = {(2, other): 200.0 for other in (0, 1, 3)}
    finding = only(peer(FOUR, matrix(4, 380.0, slow)), Status.FAIL)
    assert (finding.subject.kind, finding.subject.gpu) == ("gpu", 2)
    assert "all 3 others" in (finding.found.text if finding.found else "")


@pytest.mark.parametrize(("path", "status"), [("PIX", Status.FAIL), ("SYS", Status.WARN)])
def test_pcie_pairs_are_judged_by_pairs_of_their_kind_and_fail_only_below_one_bridge(path: str, status: Status) -> None:
    node = Node(gpus=gpus(4, "NVIDIA L40S", pcie=GEN5), pairs=pairs(4, path=path))
    expect(peer(node, matrix(4, 24.0, {(0, 1): 10.0})), status, gpus=(0, 1))
    expect(peer(node, matrix(4, 24.0, {(0, 1): 10.0}, p2p=False)), Status.WARN, gpus=(0, 1))


def test_a_narrow_slot_is_not_compared_with_wide_ones() -> None:
    wide, narrow = (PcieLink(generation=4, generation_max=4, width=w) for w in (16, 8))
    four = tuple(gpu(i, "NVIDIA L40S", pcie=narrow if i == 3 else wide) for i in range(4))
    node = Node(gpus=four, pairs=pairs(4, path="PIX"))
    slow = {(a, b): 12.0 for a in range(4) for b in range(4) if 3 in (a, b)}
    assert peer(node, matrix(4, 24.0, slow)).status is Status.PASS


def test_two_gpus_over_pcie_have_nothing_to_be_compared_with() -> None:
    node = Node(gpus=gpus(2, "NVIDIA L40S"), pairs=pairs(2, path="PHB"))
    result = peer(node, matrix(2, 11.0, p2p=False))
    assert [f.status for f in result.findings] == [Status.PASS, Status.SKIP]
    assert "every byte" in words(result)
    assert "11 GB/s" in words(result)


def test_changed_data_fail_and_name_the_pair() -> None:
    links = tuple(
        link if (link.source, link.target) != (3, 1) else type(link)(3, 1, 256 << 20, 380.0, wrong_elements=7)
        for link in matrix(4, 380.0)
    )
    result = peer(FOUR, links)
    assert only(result, Status.FAIL).subject.gpus == (1, 3)
    assert "every byte of" not in words(result)


def test_peer_to_peer_that_is_refused_between_nvlinked_gpus_fails() -> None:
    expect(peer(Node(gpus=gpus(2), pairs=pairs(2, nvlinks=18)), matrix(2, 11.0, p2p=False)), Status.FAIL, gpus=(0, 1))
    secret = Settings(mig_enabled=False, confidential_compute=True)
    hidden = Node(gpus=gpus(2, settings=secret), pairs=pairs(2, nvlinks=18))
    assert {f.status for f in peer(hidden, matrix(2, 11.0, p2p=False)).findings} == {Status.PASS, Status.SKIP}


def test_one_gpu_and_a_reason_are_skipped_and_a_hole_is_unknown() -> None:
    one = Node(gpus=gpus(1, pcie=GEN5))
    assert peer(one, (), host_links=copied(52.0)).status is Status.SKIP
    expect(peer(FOUR, (), not_run={"peer": Missing("exclusive mode", "denied")}), Status.SKIP, "exclusive mode")
    assert only(peer(FOUR, matrix(4, 380.0)[:-1]), Status.UNKNOWN).reason == "11 of 12 directions were measured"
    limited = peer(FOUR, matrix(4, 380.0)[:-1], not_run={"peer": Missing("no more peers", "unsupported")})
    assert only(limited, Status.SKIP).reason == "11 of 12 directions were measured: no more peers"


def test_a_pair_that_others_use_is_not_convicted() -> None:
    used = gpu(1, pcie=GEN5, processes=(GpuProcess(99, kind="C"),))
    node = Node(gpus=(FOUR.gpus[0], used, *FOUR.gpus[2:]), pairs=FOUR.pairs)
    assert only(peer(node, matrix(4, 380.0, {(0, 1): 100.0})), Status.UNKNOWN).subject.gpus == (0, 1)


def test_telemetry_finds_a_gpu_by_uuid() -> None:
    other = GpuUnderLoad(0, uuid_of(5), 9, {"pcie_generation": Spread(3, 3, 3)})
    assert host(ONE, *copied(26.0), telemetry=(Telemetry("link", 3.0, (other,)),)).status is Status.PASS


def test_gpus_that_the_facts_do_not_hold_are_unknown_and_convict_nobody() -> None:
    elsewhere = Node(gpus=gpus(2, uuid="GPU-other"))
    lost = measured(Node(gpus=gpus(4)), host_links=copied(1.0, 1.0, 1.0, 1.0), peer_links=matrix(4, 1.0))
    apart = Node(gpus=(gpu(7), gpu(8)))
    for node in (elsewhere, apart):
        assert Status.FAIL not in {f.status for f in judge(HOST, node, lost).findings}
        assert Status.FAIL not in {f.status for f in judge(PEER, node, lost).findings}
    assert judge(HOST, apart, lost).status is Status.UNKNOWN
    assert judge(PEER, apart, lost).status is Status.UNKNOWN
