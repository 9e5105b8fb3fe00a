"""NVLinks, fabric and pairs through the driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gpudoctor.facts.model.missing import UNSUPPORTED, Missing
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.testing.fake_nvml import ScriptedFault
from tests.facts.nvml_nodes import ABSENT_IN_470, LAST_FIELD_IN_470, make_gpu, make_node, of_field, read, with_gpu
from tests.narrowed import missing, present


def test_links_of_older_drivers_are_read_from_the_field_ids_of_that_time(root: Path) -> None:
    node = make_node(1, driver="470.57.02", links=12)
    old = {84: 25781, 132: 25000, 32: 4, 96: 5, 46: 6, 108: 7, 53: 8, 114: 9}
    faults = [of_field(field, value=value) for field, value in old.items()]
    _, heard, _ = read(root, node, *faults, absent=ABSENT_IN_470, last_field=LAST_FIELD_IN_470)
    links = present(heard.gpus[0].nvlinks)
    first, seventh = links[0], links[6]
    assert (first.speed_gb_s, first.crc_errors, first.replay_errors, first.recovery_errors) == (25.781, 4, 6, 8)
    assert (seventh.speed_gb_s, seventh.crc_errors, seventh.replay_errors, seventh.recovery_errors) == (25.0, 5, 7, 9)
    assert links[1].speed_gb_s == UNSUPPORTED


def test_blackwell_counts_its_link_errors_under_other_ids(root: Path) -> None:
    faults = [of_field(field, code=3) for field in (161, 162, 163)]
    _, heard, _ = read(root, make_node(1), *faults, of_field(208, value=21), of_field(215, value=22))
    links = present(heard.gpus[0].nvlinks)
    assert {(link.crc_errors, link.replay_errors, link.recovery_errors) for link in links} == {(21, UNSUPPORTED, 22)}


def test_a_driver_that_hides_the_link_count_is_asked_link_by_link(root: Path) -> None:
    node = make_node(1, links=4)
    _, heard, nvml = read(root, node, of_field(91, code=3))
    assert heard.gpus[0].nvlinks == node.gpus[0].nvlinks
    assert nvml.calls["nvmlDeviceGetNvLinkState", 0] == 5


def test_a_gpu_without_links_has_no_pairs_by_nvlink(root: Path) -> None:
    node = with_gpu(make_node(2), 1, nvlinks=UNSUPPORTED)
    _, heard, _ = read(root, node)
    assert heard.gpus[1].nvlinks == UNSUPPORTED
    assert heard.pairs_by_name[0, 1].nvlinks == 0


def test_a_pair_through_the_switch_has_as_many_links_as_both_ends(root: Path) -> None:
    links = present(make_gpu(1).nvlinks)
    down = Missing("the link is inactive")
    dead = replace(links[5], state="inactive", version=down, speed_gb_s=down, remote_kind=down, remote_bus_id=down)
    node = with_gpu(make_node(3), 1, nvlinks=(*links[:5], dead, *links[6:]))
    _, heard, _ = read(root, node)
    assert heard.gpus[1].nvlinks == node.gpus[1].nvlinks
    assert [heard.pairs_by_name[pair].nvlinks for pair in ((0, 1), (0, 2), (1, 2))] == [17, 18, 17]


def test_links_whose_other_end_cannot_be_read_leave_the_pair_unknown(root: Path) -> None:
    node = load_node("rtx3090-nvlink-2")
    _, heard, _ = read(root, node, ScriptedFault("nvmlDeviceGetNvLinkRemotePciInfo", gpu=1, code=10))
    assert missing(heard.pairs_by_name[0, 1].nvlinks).kind == "failed"


def test_a_switch_that_hides_its_address_is_a_switch_without_one(root: Path) -> None:
    node = make_node(1, links=2)
    links = present(node.gpus[0].nvlinks)
    node = with_gpu(node, 0, nvlinks=tuple(replace(link, remote_bus_id=None) for link in links))
    _, heard, _ = read(root, node, of_field(147, code=3))
    got = present(heard.gpus[0].nvlinks)
    assert {(link.remote_kind, link.remote_bus_id) for link in got} == {("switch", None)}


def test_an_older_form_of_the_fabric_is_read_where_the_newest_is_not_known(root: Path) -> None:
    # code 25: the driver does not know this version of the struct
    _, heard, nvml = read(root, make_node(1), ScriptedFault("nvmlDeviceGetGpuFabricInfoV", code=25))
    told = make_gpu(0).fabric
    got = heard.gpus[0].fabric
    for leaf in ("state", "status", "clique_id", "cluster_uuid"):
        assert getattr(got, leaf) == getattr(told, leaf)
    # the oldest form has no health
    assert (got.health_summary, got.health_bandwidth, got.route_unhealthy) == (UNSUPPORTED,) * 3
    assert nvml.calls["nvmlDeviceGetGpuFabricInfoV", 0] == 2
    assert nvml.calls["nvmlDeviceGetGpuFabricInfo", 0] == 1


def test_a_fabric_that_is_not_done_has_no_status_yet(root: Path) -> None:
    fabric = replace(make_gpu(0).fabric, state="in-progress")
    _, heard, _ = read(root, with_gpu(make_node(1), 0, fabric=fabric))
    got = heard.gpus[0].fabric
    assert got.state == "in-progress"
    assert got.status == got.clique_id == Missing("the fabric is not completed")


def test_an_error_of_a_pair_taints_neither_gpu(root: Path) -> None:
    _, heard, _ = read(root, make_node(2), ScriptedFault("nvmlDeviceGetP2PStatus", code=999))
    pair = heard.pairs_by_name[0, 1]
    assert missing(pair.p2p_read).kind == "failed"
    assert pair.path == "NODE"
    assert (heard.gpus[0].errors, heard.gpus[1].errors) == ((), ())


def test_links_that_are_all_refused_are_no_links(root: Path) -> None:
    # MIG is on: the count stays, and every link is "not supported"
    _, heard, _ = read(root, make_node(2), ScriptedFault("nvmlDeviceGetNvLinkState", code=3), of_field(165, code=3))
    assert heard.gpus[0].nvlinks == UNSUPPORTED
    assert heard.pairs_by_name[0, 1].nvlinks == 0


def test_a_link_whose_state_is_an_error_leaves_the_pair_unknown(root: Path) -> None:
    broken = of_field(165, 1, code=10)
    _, heard, _ = read(root, make_node(2), broken, ScriptedFault("nvmlDeviceGetNvLinkState", gpu=1, code=10))
    links = present(heard.gpus[1].nvlinks)
    state = missing(links[0].state)
    assert state.kind == "failed"
    assert heard.pairs_by_name[0, 1].nvlinks == state


def test_where_the_switch_count_is_not_told_every_link_is_asked_for_its_end(root: Path) -> None:
    node = load_node("dgx1-v100-8")
    _, heard, nvml = read(root, node, of_field(147, code=3))
    assert heard.gpus[0].nvlinks == node.gpus[0].nvlinks
    assert nvml.calls["nvmlDeviceGetNvLinkRemoteDeviceType", 0] == 6


def test_a_link_that_ends_at_nvml_does_not_know_what_has_no_kind(root: Path) -> None:
    node = load_node("rtx3090-nvlink-2")
    unknown = ScriptedFault("nvmlDeviceGetNvLinkRemoteDeviceType", value=0xFF)
    _, heard, _ = read(root, node, of_field(147, code=3), unknown)
    links = present(heard.gpus[0].nvlinks)
    assert {link.remote_kind for link in links} == {UNSUPPORTED}
    # the address names the other GPU all the same
    assert heard.pairs_by_name[0, 1].nvlinks == 4


def test_on_power9_the_end_of_a_link_may_be_a_cpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "ppc64le")
    node = load_node("rtx3090-nvlink-2")
    links = present(node.gpus[0].nvlinks)
    changed = tuple(replace(link, remote_kind="cpu", remote_bus_id="0004:00:00.0") for link in links)
    _, heard, _ = read(root, with_gpu(node, 0, nvlinks=changed))
    assert heard.gpus[0].nvlinks == changed
    assert heard.pairs_by_name[0, 1].nvlinks == 0


def test_a_gpu_that_refuses_its_fabric_with_an_error_is_tainted(root: Path) -> None:
    _, heard, _ = read(root, make_node(1), ScriptedFault("nvmlDeviceGetGpuFabricInfoV", code=16))
    gpu = heard.gpus[0]
    assert missing(gpu.fabric.state).kind == "failed"
    assert [error.code for error in gpu.errors] == [16]
