"""pcie.upstream, acs, balance, errors: the hardware around the GPU's own link."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.kernel_log.lines import read_kernel_text
from gpudoctor.facts.model.driver import KernelLog
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.report.judge import judge as judge_node
from tests.checks.one_check import finds
from tests.checks.wired import ABSENT, FAILED, bad, found, hops, judged, of_gpu, on_gpus, only, says, simulated

UPSTREAM, ACS, BALANCE, ERRORS = "pcie.upstream", "pcie.acs", "pcie.balance", "pcie.errors"
DENIED = Missing("needs root", "denied")


def test_a_slow_switch_uplink_is_named_with_the_gpu_behind_it() -> None:
    result = judged(UPSTREAM, simulated("hgx-h100-8", "pcie-upstream-downgraded@5"))
    [finding] = bad(result)
    assert (finding.status, finding.subject.gpu) == (Status.FAIL, 5)
    assert found(finding) == "PCIe Gen4 x16 from 0000:a9:00.0 up to 0000:a8:01.0"
    assert says(finding, "31.51 GB/s each way instead of 63.02", "16.0 (maximum 32.0)")
    assert len(result.findings) == 8


def test_a_bridge_shared_by_two_gpus_is_one_finding_that_lists_both() -> None:
    node = simulated("dgx1-v100-8")
    for gpu in (2, 3):
        node = on_gpus(node, gpu, pcie__path=hops({2: {"width": 8}, 3: {"width": 8}}))
    bad_ones = bad(judged(UPSTREAM, node))
    finds(bad_ones, Status.FAIL, "x8", "x16", "shared by GPUs 2 and 3", gpus=(2, 3), bus_id="0000:08:00.0")


def test_a_bridge_above_three_gpus_is_named_itself() -> None:
    node = on_gpus(simulated("dgx1-v100-8"), pcie__path=hops({2: {"bus_id": "0000:04:00.0"}}))
    for gpu in (0, 1, 2):
        node = on_gpus(node, gpu, pcie__path=hops({2: {"bus_id": "0000:04:00.0", "width": 8}}))
    [finding] = bad(judged(UPSTREAM, node))
    assert finding.subject.label == "the link above GPUs 0, 1 and 2"


def test_a_virtual_switch_port_is_a_warning_and_a_link_trained_to_one_lane_a_failure() -> None:
    """H100 PCIe behind Broadcom PEX890xx in synthetic mode: its ports show Gen1 x1, whatever they carry."""
    least = {"width": 1, "speed_gt_s": 2.5}
    virtual = on_gpus(simulated("hgx-h100-8"), 5, pcie__path=hops({2: least, 3: least}))
    finds(bad(judged(UPSTREAM, virtual)), Status.WARN, "Gen1 x1", "link.host", gpu=5)
    one_lane = on_gpus(simulated("hgx-h100-8"), 5, pcie__path=hops({2: {"width": 1}, 3: {"width": 1}}))
    assert [f.status for f in bad(judged(UPSTREAM, one_lane))] == [Status.FAIL]


def test_every_hop_slowed_alike_is_a_setting_and_a_warning() -> None:
    node = on_gpus(simulated("hgx-h100-8"), pcie__path=hops({2: {"speed_gt_s": 16.0}, 3: {"speed_gt_s": 16.0}}))
    result = judged(UPSTREAM, node)
    assert {f.status for f in result.findings} == {Status.WARN}
    assert says(result.findings[0], "BIOS")


def test_a_slow_hop_above_a_resting_link_is_resting_too() -> None:
    node = on_gpus(
        simulated("hgx-h100-8"),
        1,
        pcie__generation=1,
        pcie__path=hops({0: {"speed_gt_s": 2.5}, 2: {"speed_gt_s": 2.5}}),
    )
    result = judged(UPSTREAM, node)
    assert result.status is Status.PASS
    assert "at rest" in found(of_gpu(result, 1))


def test_the_inside_of_a_switch_is_no_link() -> None:
    """A Gen4 GPU under a Gen5 switch: its port runs Gen4 and is fine."""
    slower = hops({0: {"speed_gt_s": 16.0, "max_speed_gt_s": 16.0}, 1: {"speed_gt_s": 16.0, "width": 8}})
    assert judged(UPSTREAM, on_gpus(simulated("hgx-h100-8"), pcie__path=slower)).status is Status.PASS


def test_the_other_end_speaks_where_one_is_silent() -> None:
    node = simulated("hgx-h100-8")
    one_end = on_gpus(node, 0, pcie__path=hops({2: {"width": ABSENT, "speed_gt_s": ABSENT}, 3: {"width": 4}}))
    finds(bad(judged(UPSTREAM, one_end)), Status.FAIL, gpu=0)
    neither = on_gpus(node, pcie__path=hops({2: {"max_width": FAILED}}))
    assert judged(UPSTREAM, neither).status is Status.UNKNOWN
    unseen = on_gpus(node, pcie__path=hops({2: {"max_width": ABSENT}}))
    assert judged(UPSTREAM, unseen).status is Status.SKIP


@pytest.mark.parametrize("node", ["t4-cloud-4", "hgx-h100-vm-8", "gb200-tray-4"])
def test_hidden_bridges_and_c2c_are_skipped(node: str) -> None:
    assert judged(UPSTREAM, simulated(node)).status is Status.SKIP


def test_a_path_of_one_hop_on_bare_metal_is_hidden_too() -> None:
    node = on_gpus(simulated("rtx4090-4"), pcie__path=())
    assert says(judged(UPSTREAM, node).findings[0], "no bridge above it is visible")


def test_a_path_that_could_not_be_read_is_unknown() -> None:
    node = on_gpus(simulated("hgx-h100-8"), 2, pcie__path=FAILED)
    assert of_gpu(judged(UPSTREAM, node), 2).status is Status.UNKNOWN
    assert of_gpu(judged(ACS, node), 2).status is Status.UNKNOWN


def test_redirect_above_a_gpu_is_a_warning_that_names_the_bridge() -> None:
    node = on_gpus(simulated("hgx-h100-8"), 4, pcie__path=hops({1: {"acs_redirect": True}}))
    finds(bad(judged(ACS, node)), Status.WARN, "for bridge in 0000:9a:00.0; do sudo setpci -s $bridge ", gpu=4)


def test_a_translating_iommu_is_a_warning_of_the_node() -> None:
    finds(bad(judged(ACS, simulated("hgx-h100-8", "iommu-translated"))), Status.WARN, "iommu=pt", kind="node")


def iommu_faults(*lines: str) -> KernelLog:
    return read_kernel_text("".join(f"[   12.500000] {line}\n" for line in lines), "dmesg.txt")


REFUSED = "DMAR: [DMA Read NO_PASID] Request device [{}] fault addr 0x7cd80000 [fault reason 0x06] PTE Read access"


@pytest.mark.parametrize("node", ["hgx-h100-8", "hgx-h100-vm-8"])
def test_memory_accesses_of_a_gpu_that_the_iommu_refused_are_a_warning_of_that_gpu(node: str) -> None:
    line = REFUSED.format(simulated(node).gpus[5].bus_id.removeprefix("0000:"))
    bad_ones = bad(judged(ACS, simulated(node, kernel_log=iommu_faults(line, line))))
    finds(bad_ones, Status.WARN, "2 lines", "iommu=pt", "fault addr 0x7cd80000", gpu=5)


def test_refused_accesses_of_another_device_are_none_of_a_gpu() -> None:
    node = simulated("hgx-h100-8", kernel_log=iommu_faults(REFUSED.format("00:02.0")))
    assert bad(judged(ACS, node)) == []


def test_a_kernel_log_alone_shows_them_too() -> None:
    line = "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]"
    finds(bad(judged(ACS, Node(kernel_log=iommu_faults(line)))), Status.WARN, bus_id="0000:41:00.0")
    assert only(judged(ACS, Node(kernel_log=iommu_faults()))).status is Status.SKIP


@pytest.mark.parametrize(
    "node", ["gb200-tray-4", "gh200-1", "hgx-h100-vm-8", "confidential-h100", "t4-cloud-4", "rtx4090-4"]
)
def test_isolation_by_design_is_no_warning(node: str) -> None:
    assert only(judged(ACS, simulated(node, pci__iommu="translated"))).status is Status.SKIP


@pytest.mark.parametrize(
    ("leaf", "value"), [("settings__virtualization", "host-vgpu"), ("settings__confidential_compute", True)]
)
def test_hosts_of_virtual_machines_and_confidential_gpus_are_left_alone(leaf: str, value: object) -> None:
    change: dict[str, Any] = {leaf: value}
    node = on_gpus(simulated("hgx-h100-8", pci__iommu="translated"), **change)
    assert judged(ACS, node).status is Status.SKIP


def test_acs_that_may_not_be_read_is_skipped_with_the_reason() -> None:
    node = on_gpus(
        simulated("l40s-8", pci__iommu=FAILED), pcie__path=hops({i: {"acs_redirect": DENIED} for i in range(4)})
    )
    result = judged(ACS, node)
    assert of_gpu(result, 0).status is Status.SKIP
    assert says(of_gpu(result, 0), "needs root")
    assert result.status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("node", "widths", "status"),
    [
        ("rtx3090-nvlink-2", (16, 16), Status.PASS),
        ("rtx3090-nvlink-2", (16, 8), Status.PASS),
        ("rtx3090-nvlink-2", (8, 8), Status.PASS),
        ("rtx3090-nvlink-2", (16, 4), Status.WARN),
        ("workstation-mixed", (16, 8, 8), Status.PASS),
        ("workstation-mixed", (8, 4, 8), Status.WARN),
        ("rtx4090-4", (8, 8, 8, 8), Status.PASS),
        ("rtx4090-4", (16, 16, 8, 4), Status.WARN),
    ],
)
def test_lanes_are_judged_by_the_usual_split_of_so_many_gpus(
    node: str, widths: tuple[int, ...], status: Status
) -> None:
    split = on_gpus(
        simulated(node),
        pcie__width=lambda gpu: widths[gpu.index],
        pcie__path=lambda gpu: hops({1: {"max_width": widths[gpu.index]}})(gpu),
    )
    result = judged(BALANCE, split)
    assert result.status is status
    assert " / ".join(f"x{lanes}" for lanes in widths) in found(result.findings[0])


def test_a_short_gpu_is_named_with_the_gb_s_of_all() -> None:
    node = on_gpus(simulated("rtx4090-4"), 3, pcie__width=4, pcie__path=hops({1: {"max_width": 4}}))
    finds(bad(judged(BALANCE, node)), Status.WARN, gpu=3, found="x16 / x16 / x16 / x4: 7.88 to 31.51 GB/s each way")


def test_one_gpu_of_eight_with_half_the_lanes_is_named_although_gen5_carries_much() -> None:
    narrow = on_gpus(simulated("hgx-h100-8"), 5, pcie__width=8, pcie__path=hops({1: {"max_width": 8}}))
    lanes = "x16 / x16 / x16 / x16 / x16 / x8 / x16 / x16: 31.51 to 63.02 GB/s each way"
    finds(bad(judged(BALANCE, narrow)), Status.WARN, gpu=5, found=lanes, expected="x16, as most of the GPUs have")
    alike = on_gpus(simulated("hgx-h100-8"), pcie__width=8, pcie__path=hops({1: {"max_width": 8}}))
    assert judged(BALANCE, alike).status is Status.PASS


def test_half_the_lanes_of_one_gpu_are_one_problem_and_not_two() -> None:
    narrow = on_gpus(simulated("hgx-h100-8"), 5, pcie__width=8, pcie__path=hops({1: {"max_width": 8}}))
    report = judge_node(narrow)
    explained = {c.id: f.explained_by for c in report.checks for f in c.findings if f.status is Status.WARN}
    assert explained == {"pcie.link-width": None, "pcie.balance": "pcie.link-width"}
    below_its_slot = judge_node(simulated("hgx-h100-8", "pcie-width-x8@5"))
    assert [fault.check for fault in below_its_slot.faults] == ["pcie.link-width"]


def test_few_lanes_of_a_fast_generation_are_enough() -> None:
    node = on_gpus(simulated("h100-nvl-4"), pcie__width=4, pcie__path=hops({1: {"max_width": 4}}))
    assert judged(BALANCE, node).status is Status.PASS


def test_a_link_below_its_slot_is_not_the_platforms_split() -> None:
    finds(judged(BALANCE, simulated("rtx4090-4", "pcie-width-x4@2")).findings, Status.SKIP, "GPU 2", "pcie.link-width")


def test_lanes_without_a_generation_are_judged_by_count() -> None:
    unknown: dict[str, Any] = {
        "pcie__generation": ABSENT,
        "pcie__generation_max": ABSENT,
        "pcie__device_generation_max": ABSENT,
    }
    node = on_gpus(simulated("rtx4090-4"), pcie__width=4, pcie__path=ABSENT, **unknown)
    finds(judged(BALANCE, node).findings, Status.WARN, found="x4 / x4 / x4 / x4", kind="node")


def test_without_every_width_there_is_no_split_to_judge() -> None:
    node = simulated("rtx4090-4")
    assert judged(BALANCE, on_gpus(node, 1, pcie__width=FAILED)).status is Status.UNKNOWN
    assert judged(BALANCE, on_gpus(node, 1, pcie__width=ABSENT)).status is Status.UNKNOWN  # its peers show theirs
    assert judged(BALANCE, simulated("gb200-tray-4")).status is Status.SKIP
    assert judged(BALANCE, simulated("gh200-1")).status is Status.SKIP


def test_old_replays_are_no_verdict() -> None:
    result = judged(ERRORS, simulated("lifetime-counters"))
    assert result.status is Status.PASS
    assert "150 replays" in found(of_gpu(result, 3))
    assert "a rate needs load" in found(of_gpu(result, 3))


@pytest.mark.parametrize(
    ("own", "peers", "status"),
    [(900, 0, Status.PASS), (1500, 0, Status.WARN), (1500, 200, Status.PASS), (50_000, 200, Status.WARN)],
)
def test_replays_count_only_far_above_the_peers(own: int, peers: int, status: Status) -> None:
    node = on_gpus(on_gpus(simulated("hgx-h100-8"), pcie__replays=peers), 6, pcie__replays=own)
    result = judged(ERRORS, node)
    assert (result.status, of_gpu(result, 6).status) == (status, status)


def test_corrected_errors_of_the_gpu_count_like_replays() -> None:
    node = on_gpus(simulated("hgx-h100-8"), 1, pcie__path=hops({0: {"aer_correctable": 70_000}}))
    [finding] = bad(judged(ERRORS, node))
    assert (finding.status, finding.subject.gpu) == (Status.WARN, 1)
    assert "70000 corrected errors" in found(finding)


@pytest.mark.parametrize(
    ("hop", "leaf", "status"),
    [
        (0, "aer_fatal", Status.FAIL),
        (0, "aer_nonfatal", Status.WARN),
        (2, "aer_fatal", Status.WARN),
        (2, "aer_nonfatal", Status.PASS),
    ],
)
def test_uncorrected_errors_are_judged_by_severity_and_by_whose_they_are(hop: int, leaf: str, status: Status) -> None:
    result = judged(ERRORS, on_gpus(simulated("hgx-h100-8"), 1, pcie__path=hops({hop: {leaf: 2}})))
    assert of_gpu(result, 1).status is status


@pytest.mark.parametrize(
    ("others", "own", "status"), [(1, 1, Status.PASS), (2, 3, Status.PASS), (0, 1, Status.WARN), (2, 9, Status.WARN)]
)
def test_non_fatal_errors_that_all_gpus_count_alike_came_with_the_platform(
    others: int, own: int, status: Status
) -> None:
    """HGX H100 whose firmware probes every GPU for what it does not have at boot: one Unsupported Request each."""
    node = on_gpus(simulated("hgx-h100-8"), pcie__path=hops({0: {"aer_nonfatal": others}}))
    result = judged(ERRORS, on_gpus(node, 3, pcie__path=hops({0: {"aer_nonfatal": own}})))
    assert of_gpu(result, 3).status is status
    assert says(of_gpu(result, 3), f"{own} non-fatal")


def test_no_counter_at_all_is_no_pass() -> None:
    node = on_gpus(simulated("hgx-h100-8"), pcie__replays=ABSENT, pcie__path=ABSENT)
    assert judged(ERRORS, node).status is Status.SKIP
    assert judged(ERRORS, on_gpus(node, 0, pcie__replays=FAILED)).status is Status.UNKNOWN
