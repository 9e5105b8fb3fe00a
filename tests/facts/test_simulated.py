"""Simulated nodes and the fault kit, through the functions that the command line uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor.errors import UserError
from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.gpu import Gpu, PcieLink
from gpudoctor.facts.model.missing import NOT_READ, Missing
from gpudoctor.facts.model.node import Driver, Node, Source, from_json, to_json
from gpudoctor.facts.simulated.load import apply_faults, fault_names, faults, load_node, node_names, node_titles
from tests.narrowed import present

PROMISED = (
    *("hgx-h100-8", "hgx-h200-8", "hgx-b200-8", "dgx-a100-8", "dgx1-v100-8", "gb200-tray-4", "gh200-1", "h100-nvl-2"),
    *("l40s-8", "t4-cloud-4", "a100-mig-8", "rtx4090-4", "rtx4090-8", "rtx3090-nvlink-2", "workstation-mixed"),
    *("container-2-of-8", "cpu-only"),
)


def unread_leaves(struct: msgspec.Struct, path: str = "") -> Iterator[str]:
    for name in struct.__struct_fields__:
        value: Any = getattr(struct, name)
        if value == NOT_READ:
            yield f"{path}.{name}"
        elif isinstance(value, msgspec.Struct):
            yield from unread_leaves(value, f"{path}.{name}")
        elif isinstance(value, tuple):
            for item in value:
                if isinstance(item, msgspec.Struct):
                    yield from unread_leaves(item, f"{path}.{name}[]")


@pytest.fixture(params=node_names())
def node(request: pytest.FixtureRequest) -> Node:
    """Each of the packaged nodes."""
    return load_node(request.param)


def gpu(node: Node, index: int) -> Gpu:
    return next(gpu for gpu in node.gpus if gpu.index == index)


def test_the_promised_nodes_are_packaged() -> None:
    assert set(PROMISED) <= set(node_names())


def test_a_node_survives_the_way_to_json_and_back(node: Node) -> None:
    assert from_json(to_json(node)) == node


def test_a_node_says_of_every_leaf_what_a_live_collection_would(node: Node) -> None:
    allowed = (
        *(".source.", ".network.", ".software.", ".gpus[].nvlinks[].", ".gpus[].pcie.path[]."),
        # only captures contain these
        *(".driver.d", ".driver.excluded_gpus", ".host.secure_boot", ".fabric_manager.", ".kernel_log.host_events"),
        ".gpus[].inforom_corrupted",
    )
    left = {leaf for leaf in unread_leaves(node) if not leaf.startswith(allowed)}
    assert left == set()


@pytest.mark.parametrize("name", node_names())
def test_a_node_is_marked_simulated_under_its_own_name(name: str) -> None:
    source = load_node(name).source
    assert (source.kind, source.name, source.faults) == ("simulated", name, ())


def test_names_of_gpus_are_distinct_and_in_bus_order(node: Node) -> None:
    gpus = node.gpus
    assert len({g.uuid for g in gpus}) == len(gpus)
    assert [g.bus_id for g in gpus] == sorted(g.bus_id for g in gpus)
    assert [g.index for g in gpus] == list(range(len(gpus)))


def test_every_gpu_that_the_driver_shows_is_on_the_pci_bus(node: Node) -> None:
    if node.source.name == "wsl2-1":  # whose GPU is behind a Microsoft device
        assert present(node.pci.nvidia_devices) == ()
        return
    assert {g.bus_id for g in node.gpus} <= {device.bus_id for device in present(node.pci.nvidia_devices)}


@pytest.mark.wide
@pytest.mark.parametrize("name", node_names())
def test_no_fault_makes_a_node_that_cannot_be_read_back(name: str, tmp_path: Path) -> None:
    path, node = tmp_path / "node.json", load_node(name, {})
    for fault in faults():
        with suppress(UserError):  # it cannot happen here
            node = apply_faults(load_node(name, {}), [fault.name])
        path.write_bytes(to_json(node))
        assert load_source(str(path)).node.source.kind == "simulated", fault.name


def test_every_node_has_a_title_of_one_line() -> None:
    titles = node_titles()
    assert set(titles) == set(node_names())
    assert all(title and "\n" not in title for title in titles.values())


def test_the_cube_mesh_gives_each_v100_six_links_and_no_direct_way_across() -> None:
    node = load_node("dgx1-v100-8")
    assert {len(g.nvlinks) for g in node.gpus if isinstance(g.nvlinks, tuple)} == {6}
    bonds = {(pair.a, pair.b): (pair.nvlinks, pair.path, pair.p2p_read) for pair in present(node.pairs)}
    assert bonds[0, 1] == (1, "PIX", "OK")
    assert bonds[0, 4] == (2, "SYS", "OK")
    assert bonds[0, 7] == (0, "SYS", "TNS")


def test_the_links_of_an_hgx_end_at_its_four_switches() -> None:
    node = load_node("hgx-h100-8")
    ends = {link.remote_bus_id for g in node.gpus if isinstance(g.nvlinks, tuple) for link in g.nvlinks}
    switches = {d.bus_id for d in node.pci.nvidia_devices if d.pci_class == "0x068000"}  # type: ignore[union-attr]
    assert ends == switches
    assert len(switches) == 4


@pytest.mark.parametrize(
    ("spec", "slowest_s", "hangs"),
    [
        ("driver-stall@3:2.6s", 2.6, 0),
        ("driver-stall@3:8", 8.0, 0),
        ("driver-stall", 7.0, 0),
        ("driver-stall@3:30s", 0.021, 1),
    ],
)
def test_a_stall_is_as_long_as_was_asked_and_beyond_a_readers_patience_a_hang(
    spec: str, slowest_s: float, hangs: int
) -> None:
    node = apply_faults(load_node("hgx-h100-8"), [spec])
    assert node.driver.slowest_call_s == slowest_s
    assert len(node.driver.unanswered) == hangs
    if not hangs:
        assert node.driver.slowest_call == f"nvmlDeviceGetFieldValues on GPU {3 if '@' in spec else 7}"


@pytest.mark.parametrize("seconds", ["", "x", "0", "-1", "1e3", "3ms", "nan"])
def test_a_stall_that_is_not_in_seconds_is_refused_with_an_example(seconds: str) -> None:
    with pytest.raises(UserError, match="seconds, as in driver-stall@3:2"):
        apply_faults(load_node("hgx-h100-8"), [f"driver-stall@3:{seconds}"])


def test_a_container_sees_two_gpus_where_the_bus_has_eight() -> None:
    node = load_node("container-2-of-8")
    assert (len(node.gpus), sum(d.pci_class == "0x030200" for d in present(node.pci.nvidia_devices))) == (2, 8)
    given = node.environment.get("NVIDIA_VISIBLE_DEVICES")
    assert given == ",".join(str(g.uuid) for g in node.gpus)


def test_settings_of_the_caller_can_be_tried_on_a_node() -> None:
    tried = {"CUDA_VISIBLE_DEVICES": "0,9", "NCCL_P2P_DISABLE": "1", "SLURM_JOB_ID": "7"}
    node = load_node("hgx-h100-8", {**tried, "RANK": "3", "HOME": "/root"})
    assert {v.name: v.value for v in present(node.environment.variables)} == tried


def test_what_the_node_says_itself_stays_beside_what_the_caller_sets() -> None:
    node = load_node("container-2-of-8", {"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "none"})
    assert node.environment.get("CUDA_VISIBLE_DEVICES") == "0"
    assert str(node.environment.get("NVIDIA_VISIBLE_DEVICES")).startswith("GPU-")


def test_an_unknown_node_is_one_line_with_the_nearest_names() -> None:
    with pytest.raises(UserError, match=r"no simulated node is called 'hgx-h100'; did you mean .*hgx-h100-8") as error:
        load_node("hgx-h100")
    assert "\n" not in str(error.value)


def test_a_node_name_is_never_a_path() -> None:
    for name in ("../nodes/hgx-h100-8", "_linux", "", "hgx-h100-8.yaml"):
        with pytest.raises(UserError, match="no simulated node"):
            load_node(name)


def test_the_kit_has_at_least_45_faults_with_distinct_names() -> None:
    assert len(fault_names()) == len(set(fault_names())) == len(faults()) >= 45


@pytest.mark.wide(every=3)
@pytest.mark.parametrize("name", fault_names())
def test_a_fault_changes_the_node_and_leaves_valid_facts(name: str) -> None:
    fault = next(fault for fault in faults() if fault.name == name)
    for node in map(load_node, ("hgx-h100-8", "dgx1-v100-8", "hgx-b200-8", "rtx4090-4")):
        if not fault.happens_on(node):
            with pytest.raises(UserError):
                apply_faults(node, [name])
            continue
        broken = apply_faults(node, [name])
        # with the target that was taken, as it could have been given
        (taken,) = broken.source.faults
        assert taken.partition("@")[0] == name
        assert ("@" in taken) is (fault.kind != "node")
        assert apply_faults(node, [taken]) == broken
        assert msgspec.structs.replace(broken, source=node.source) != node
        assert from_json(to_json(broken)) == broken


def test_without_a_target_the_last_gpu_is_struck() -> None:
    broken = apply_faults(load_node("rtx4090-4"), ["pcie-width-x4"])
    assert [g.pcie.width for g in broken.gpus] == [16, 16, 16, 4]


def test_a_target_is_an_nvml_index_and_its_slot_shows_the_same() -> None:
    broken = apply_faults(load_node("hgx-h100-8"), ["pcie-width-x8@5"])
    path = present(gpu(broken, 5).pcie.path)
    assert [hop.width for hop in path] == [8, 8, 16, 16]
    assert gpu(broken, 4).pcie.width == 16
    assert [event.bus_id for event in present(broken.kernel_log.events)] == ["0000:ab:00.0"]


def test_a_link_that_is_down_thins_every_bond_of_its_gpu() -> None:
    broken = apply_faults(load_node("hgx-h100-8"), ["nvlink-link-down@3:7"])
    links = present(gpu(broken, 3).nvlinks)
    assert [link.link for link in links if link.state == "inactive"] == [7]
    assert {pair.nvlinks for pair in present(broken.pairs) if 3 in (pair.a, pair.b)} == {17}
    assert {pair.nvlinks for pair in present(broken.pairs) if 3 not in (pair.a, pair.b)} == {18}


def test_a_link_between_two_gpus_is_down_at_both_ends() -> None:
    broken = apply_faults(load_node("dgx1-v100-8"), ["nvlink-link-down@0:0"])
    down = {
        g.index for g in broken.gpus if isinstance(g.nvlinks, tuple) and any(x.state == "inactive" for x in g.nvlinks)
    }
    assert down == {0, 1}
    pair = next(pair for pair in present(broken.pairs) if (pair.a, pair.b) == (0, 1))
    assert (pair.nvlinks, pair.p2p_read) == (0, "TNS")


def test_a_pair_fault_strikes_the_two_gpus_named_in_either_order() -> None:
    broken = apply_faults(load_node("hgx-h100-8"), ["p2p-off@3-2"])
    assert [(pair.a, pair.b) for pair in present(broken.pairs) if pair.p2p_read != "OK"] == [(2, 3)]


def test_a_gpu_that_did_not_start_leaves_a_gap_on_the_bus_and_closed_up_indices() -> None:
    node = load_node("hgx-h100-8")
    broken = apply_faults(node, ["gpu-missing@2"])
    assert [g.index for g in broken.gpus] == list(range(7))
    assert "0000:3b:00.0" not in {g.bus_id for g in broken.gpus}
    assert broken.driver.device_count == 7
    assert broken.pci == node.pci
    assert len(present(broken.pairs)) == 21
    assert max(pair.b for pair in present(broken.pairs)) == 6


def test_a_switch_uplink_is_slow_for_every_gpu_behind_it_and_no_other() -> None:
    broken = apply_faults(load_node("l40s-8"), ["pcie-upstream-downgraded@7"])
    slow = [g.index for g in broken.gpus if isinstance(g.pcie.path, tuple) and g.pcie.path[-1].speed_gt_s == 8.0]
    assert slow == [6, 7]


def test_several_faults_add_up_and_are_named_in_order() -> None:
    broken = apply_faults(load_node("hgx-h100-8"), ["persistence-off@1", "xid-79@2"])
    assert broken.source.faults == ("persistence-off@1", "xid-79@2")
    assert gpu(broken, 1).settings.persistence is False
    assert [event.code for event in present(broken.kernel_log.events)] == [79]


def capture_of(*gpus: Gpu) -> Node:
    return Node(source=Source(kind="capture", name="rack7.xml"), driver=Driver(init_code=0), gpus=gpus)


def test_a_patched_capture_is_never_sold_as_real() -> None:
    broken = apply_faults(capture_of(Gpu(index=0, bus_id="0000:18:00.0")), ["xid-79"])
    assert (broken.source.kind, broken.source.name, broken.source.faults) == ("simulated", "rack7.xml", ("xid-79@0",))
    assert isinstance(broken.kernel_log.events, tuple)


def test_a_capture_without_bridges_can_still_have_a_narrow_link() -> None:
    wide = Gpu(index=0, bus_id="0000:18:00.0", pcie=PcieLink(width=16, width_max=16))
    assert gpu(apply_faults(capture_of(wide), ["pcie-width-x8@0"]), 0).pcie.width == 8


def test_no_faults_leave_a_node_as_it_was() -> None:
    capture = capture_of()
    assert apply_faults(capture, []) is capture


@pytest.mark.parametrize(
    ("node", "spec", "message"),
    [
        ("hgx-h100-8", "pcie-width", r"no fault is called 'pcie-width'; did you mean pcie-width-x"),
        ("hgx-h100-8", "zzz", r"no fault is called 'zzz'; see: gpudoctor nodes"),
        (
            "hgx-h100-8",
            "pcie-width-x8@9",
            r"pcie-width-x8@9: there is no GPU '9'; this node has GPU 0, 1, 2, 3, 4, 5, 6, 7",
        ),
        ("hgx-h100-8", "pcie-width-x8@", r"^no GPU stands after the @ of 'pcie-width-x8@'"),
        ("hgx-h100-8", "pcie-width-x8@3,4", r"6, 7; one fault for each GPU: give --fault again"),
        ("hgx-h100-8", "pcie-width-x8@one", r"there is no GPU 'one'"),
        ("hgx-h100-8", "pcie-width-x8@1:2", r"there is no link to strike: write pcie-width-x8@1"),
        ("hgx-h100-8", "nvlink-link-down@1:18", r"GPU 1 has the links 0 to 17, not '18'"),
        ("hgx-h100-8", "p2p-off@1", r"p2p-off strikes two GPUs: write p2p-off@A-B"),
        ("hgx-h100-8", "p2p-off@1-1", r"not GPU 1 twice"),
        ("hgx-h100-8", "shm-64m@1", r"shm-64m strikes the whole node"),
        ("t4-cloud-4", "nvlink-link-down", r"nvlink-link-down cannot happen on t4-cloud-4: these GPUs have no NVLink"),
        ("gh200-1", "p2p-off", r"p2p-off cannot happen on gh200-1: it has one GPU"),
        ("cpu-only", "gpu-lost", r"gpu-lost cannot happen on cpu-only: it shows no GPU"),
        ("rtx4090-4", "ecc-uncorrected", r"this GPU has no ECC, or it is off"),
        ("dmesg-restricted", "xid-79", r"its kernel log may not be read"),
    ],
)
def test_a_fault_that_cannot_be_is_one_clear_line(node: str, spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        apply_faults(load_node(node), [spec])
    assert "\n" not in str(error.value)


def test_a_log_that_may_not_be_read_stays_unread_under_a_fault() -> None:
    broken = apply_faults(load_node("dmesg-restricted"), ["pcie-width-x8"])
    assert isinstance(broken.kernel_log.events, Missing)


def test_packaged_files_are_small(pytestconfig: pytest.Config) -> None:
    folder = Path(pytestconfig.rootpath) / "gpudoctor" / "facts" / "simulated" / "nodes"
    assert max(path.stat().st_size for path in folder.glob("*.yaml")) < 8_000


def test_several_gpus_may_be_denied_at_once() -> None:
    node = apply_faults(load_node("hgx-h100-8"), ["gpu-handle-denied@1", "gpu-handle-denied@2"])
    assert [error.partition(":")[0] for error in node.driver.handle_errors] == ["GPU 1", "GPU 2"]
