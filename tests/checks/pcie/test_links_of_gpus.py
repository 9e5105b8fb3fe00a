"""pcie.link-width, link-speed: the GPU's own link."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.pcie.link_state import describe
from gpudoctor.facts.model.links import generation_of, link_gb_s
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from tests.checks.one_check import expect, finds
from tests.checks.wired import ABSENT, FAILED, bad, expected, found, hops, judged, on_gpus, only, says, simulated

WIDTH, SPEED = "pcie.link-width", "pcie.link-speed"


def without_slots(node: Node) -> Node:
    return on_gpus(node, pcie__path=ABSENT)


@pytest.mark.parametrize(("generation", "lanes", "rate"), [(1, 16, 4.0), (3, 16, 15.75), (4, 8, 15.75), (5, 16, 63.02)])
def test_a_link_is_worth_its_signalling_rate_less_the_encoding(generation: int, lanes: int, rate: float) -> None:
    assert link_gb_s(generation, lanes) == rate


def test_gen6_counts_the_flits_and_an_unknown_generation_is_worth_nothing_known() -> None:
    assert link_gb_s(6, 16) == 121.0
    assert link_gb_s(7, 16) is None
    assert generation_of(3.0) is None
    assert describe(None, 8) == "PCIe x8"


def test_the_narrow_gpu_is_named_with_what_it_costs_and_what_to_do() -> None:
    result = judged(WIDTH, simulated("rtx4090-4", "pcie-width-x4@2"))
    [finding] = bad(result)
    assert finding.status is Status.FAIL
    assert finding.subject.gpu == 2
    assert found(finding) == "PCIe Gen4 x4"
    assert expected(finding) == "PCIe Gen4 x16: the GPU's own maximum, and what the other 3 GPUs run at"
    assert says(finding, "7.88 GB/s each way instead of 31.51: 75% is lost", "power it off", "riser")
    assert len(result.findings) == 4


def test_of_many_peers_the_first_are_named_and_the_others_counted() -> None:
    node = simulated("rtx4090-4")
    many = tuple(replace(node.gpus[0], index=index, bus_id=f"0000:{index:02x}:00.0") for index in range(20))
    node = on_gpus(on_gpus(replace(node, gpus=many), 18, pcie__width=4), 19, pcie__width=8)
    assert [expected(finding).partition("and what ")[2] for finding in bad(judged(WIDTH, node))] == [
        f"GPUs {', '.join(map(str, range(16)))} and 2 others run at"
    ] * 2


def test_a_slot_with_fewer_lanes_than_the_gpu_is_fine_when_its_peers_have_the_same() -> None:
    node = on_gpus(simulated("rtx4090-4"), pcie__width=8, pcie__path=hops({0: {"width": 8}, 1: {"max_width": 8}}))
    result = judged(WIDTH, node)
    assert result.status is Status.PASS
    assert "slot's maximum" in expected(result.findings[0])


def test_a_slot_with_fewer_lanes_than_the_peers_slots_is_a_warning() -> None:
    node = on_gpus(simulated("rtx4090-4"), 1, pcie__width=8, pcie__path=hops({0: {"width": 8}, 1: {"max_width": 8}}))
    finds(bad(judged(WIDTH, node)), Status.WARN, "fewer lanes than its peers", "GPUs 0, 2 and 3 run at", gpu=1)


def test_below_a_narrow_slot_is_a_failure_against_the_slot() -> None:
    node = on_gpus(simulated("rtx4090-4"), 1, pcie__width=4, pcie__path=hops({0: {"width": 4}, 1: {"max_width": 8}}))
    finds(bad(judged(WIDTH, node)), Status.FAIL, expected="PCIe Gen4 x8: the slot's maximum")


def test_with_hidden_slots_the_odd_one_among_most_fails() -> None:
    node = on_gpus(without_slots(simulated("rtx4090-4")), 3, pcie__width=4)
    finds(bad(judged(WIDTH, node)), Status.FAIL, gpu=3)


def test_with_hidden_slots_two_gpus_have_no_majority_and_the_narrow_one_is_a_warning() -> None:
    node = on_gpus(without_slots(simulated("rtx3090-nvlink-2")), 1, pcie__width=8)
    finds(bad(judged(WIDTH, node)), Status.WARN, "cannot be seen from here")


def test_peers_of_another_model_do_not_judge() -> None:
    node = on_gpus(without_slots(simulated("workstation-mixed")), 2, pcie__width=8)
    finds(bad(judged(WIDTH, node)), Status.WARN, gpu=2)


def test_eight_lanes_in_a_cloud_machine_are_a_warning_that_names_the_hidden_slot() -> None:
    result = judged(WIDTH, simulated("t4-cloud-4"))
    assert {f.status for f in result.findings} == {Status.WARN}
    assert says(result.findings[0], "x8", "7.88 GB/s", "virtual machine")


def test_the_bridges_of_a_virtual_machine_are_not_believed() -> None:
    node = on_gpus(simulated("rtx4090-4", host__virtualization="vm"), pcie__path=hops({1: {"max_width": 1}}))
    assert judged(WIDTH, on_gpus(node, 1, pcie__width=8)).status is Status.FAIL
    assert judged(WIDTH, on_gpus(node, pcie__width=8)).status is Status.WARN


def test_a_wide_gpu_whose_driver_counts_the_slot_into_its_maximum_still_knows_its_own() -> None:
    node = on_gpus(simulated("rtx4090-4"), 0, pcie__width=8, pcie__width_max=8, pcie__path=hops({0: {"width": 8}}))
    finds(bad(judged(WIDTH, node)), Status.FAIL, gpu=0)


@pytest.mark.parametrize("node", ["gh200-1", "gb10-1", "gb200-tray-4"])
def test_a_narrow_link_beside_c2c_is_never_a_failure(node: str) -> None:
    narrow = on_gpus(simulated(node), pcie__width=1, pcie__width_max=16, pcie__generation=1)
    assert judged(WIDTH, narrow).status in (Status.SKIP, Status.PASS)
    assert judged(SPEED, narrow).status in (Status.SKIP, Status.PASS)


def test_one_narrow_gpu_of_a_grace_tray_is_odd_all_the_same() -> None:
    finds(bad(judged(WIDTH, on_gpus(simulated("gb200-tray-4"), 1, pcie__width=4))), Status.FAIL, gpu=1)


def test_a_generation_nobody_knows_costs_a_share() -> None:
    node = on_gpus(
        simulated("rtx4090-4", "pcie-width-x4@2"),
        pcie__generation=ABSENT,
        pcie__generation_max=ABSENT,
        pcie__device_generation_max=ABSENT,
    )
    [finding] = bad(judged(WIDTH, node))
    assert found(finding) == "PCIe x4"
    assert says(finding, "75% of the bandwidth is lost")


@pytest.mark.parametrize(("missing", "status"), [(ABSENT, Status.SKIP), (FAILED, Status.UNKNOWN)])
def test_what_was_not_read_is_skipped_and_what_failed_is_unknown(missing: Missing, status: Status) -> None:
    node = simulated("rtx4090-4")
    assert judged(WIDTH, on_gpus(node, pcie__width=missing)).status is status
    assert judged(WIDTH, on_gpus(without_slots(node), pcie__width_max=missing)).status is status
    assert judged(SPEED, on_gpus(node, pcie__generation=missing)).status is status
    unread = on_gpus(without_slots(node), pcie__generation_max=missing, pcie__host_generation_max=ABSENT)
    assert judged(SPEED, unread).status is status


def test_an_idle_link_is_skipped_and_a_full_one_passes() -> None:
    result = judged(SPEED, simulated("rtx4090-4"))
    assert result.status is Status.SKIP
    assert says(result.findings[0], "the link is idling (Gen1 of Gen4): judged under load")
    assert judged(SPEED, simulated("hgx-h100-8")).status is Status.PASS


def test_a_busy_gpu_at_a_low_generation_fails() -> None:
    bad_ones = bad(judged(SPEED, simulated("rtx4090-4", "pcie-gen1-busy@1")))
    finds(bad_ones, Status.FAIL, "4.0 GB/s each way instead of 31.51", "BIOS", gpu=1, found="PCIe Gen1")


@pytest.mark.parametrize(
    ("state", "percent", "reasons", "status"),
    [
        (8, 60, (), Status.SKIP),
        (0, 3, ("idle",), Status.SKIP),
        (0, 0, (), Status.SKIP),
        (2, 95, ("sw-power-cap",), Status.FAIL),
        (0, ABSENT, ("idle",), Status.SKIP),
        (ABSENT, 2, ABSENT, Status.SKIP),
        (ABSENT, ABSENT, ABSENT, Status.SKIP),
        (ABSENT, ABSENT, (), Status.SKIP),
    ],
)
def test_generation_is_judged_only_where_the_gpu_is_at_work(
    state: int | Missing, percent: int | Missing, reasons: tuple[str, ...] | Missing, status: Status
) -> None:
    node = on_gpus(
        simulated("rtx4090-4"),
        pcie__generation=2,
        clocks__performance_state=state,
        clocks__event_reasons=reasons,
        utilization__gpu_pct=percent,
    )
    assert judged(SPEED, node).status is status


def test_a_slow_busy_link_behind_hidden_bridges_is_a_warning() -> None:
    busy: dict[str, Any] = {"utilization__gpu_pct": 100, "clocks__performance_state": 0}
    node = on_gpus(simulated("t4-cloud-4"), 2, pcie__generation=1, **busy)
    finds(bad(judged(SPEED, node)), Status.WARN, gpu=2)


def test_the_slower_of_gpu_and_slot_is_what_is_expected() -> None:
    node = on_gpus(simulated("rtx4090-4"), pcie__generation=3, pcie__generation_max=ABSENT, pcie__host_generation_max=3)
    assert judged(SPEED, node).status is Status.PASS


def test_the_device_maximum_alone_can_only_confirm() -> None:
    alone: dict[str, Any] = {"pcie__generation_max": ABSENT, "pcie__host_generation_max": ABSENT}
    node = simulated("rtx4090-4")
    assert judged(SPEED, on_gpus(node, pcie__generation=4, **alone)).status is Status.PASS
    expect(judged(SPEED, on_gpus(node, pcie__generation=3, utilization__gpu_pct=100, **alone)), Status.SKIP)


def test_the_limit_for_being_busy_can_be_configured() -> None:
    node = on_gpus(simulated("rtx4090-4"), utilization__gpu_pct=30, clocks__performance_state=0)
    assert judged(SPEED, node).status is Status.FAIL
    overrides = {(SPEED, "busy_pct", ""): 50.0}
    assert judged(SPEED, node, limit_overrides=overrides).status is Status.SKIP


def test_a_single_gpu_at_full_width_passes() -> None:
    assert only(judged(WIDTH, simulated("vgpu-guest-1"))).status is Status.SKIP
    assert only(judged(WIDTH, simulated("gh200-1"))).status in (Status.PASS, Status.SKIP)
