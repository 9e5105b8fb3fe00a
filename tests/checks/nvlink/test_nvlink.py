"""nvlink.*: links, matrix, counters and fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.gpu import Gpu, GpuPair, NvLink
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent, Node, PciBus
from gpudoctor.profiles.load import profile_for
from gpudoctor.profiles.profile import NO_PROFILE
from gpudoctor.report.judge import judge
from tests.checks.one_check import expect, finds
from tests.checks.wired import ABSENT, FAILED, bad, found, judged, of_gpu, on_gpus, on_pairs, only, says, simulated
from tests.narrowed import present

LINKS, TOPOLOGY, ERRORS, FABRIC = "nvlink.links", "nvlink.topology", "nvlink.errors", "nvlink.fabric"


def links(count: int = 99, **leaves: Any) -> Any:
    """For `on_gpus(nvlinks=...)`: leaves changed on the first `count` links."""

    def made(gpu: Gpu) -> tuple[NvLink, ...]:
        return tuple(
            replace(link, **leaves) if place < count else link for place, link in enumerate(present(gpu.nvlinks))
        )

    return made


def node_finding(node: Node, **case: Any) -> str:
    [finding] = [f for f in judged(LINKS, node, **case).findings if f.subject.kind == "node"]
    return found(finding)


def test_a_whole_node_says_how_many_links_are_up() -> None:
    assert judged(LINKS, simulated("hgx-h100-8")).status is Status.PASS
    assert node_finding(simulated("hgx-h100-8")) == "144 of 144 links up"
    assert node_finding(simulated("dgx1-v100-8")) == "48 of 48 links up"


@pytest.mark.parametrize(("name", "peers"), [("hgx-a100-4", [0, 2, 3]), ("dgx1-v100-8", [0, 2, 3, 5])])
def test_the_gpu_that_all_missing_links_share_is_the_one_fault(name: str, peers: list[int]) -> None:
    report = judge(simulated(name, "nvlink-all-down@1"))
    [fault] = report.faults
    assert (fault.check, fault.subject.gpu, fault.gpus) == (LINKS, 1, (1,))
    ends = [sorted({1, peer}) for peer in peers]
    pairs = [each for each in fault.explains if each.startswith(f"{LINKS} fail: ")]
    assert [each.partition(": ")[2].partition(":")[0] for each in pairs] == [f"GPU {a} - GPU {b}" for a, b in ends]
    assert "fabric manager" not in (fault.likely or "")


def test_links_down_that_share_no_gpu_are_faults_of_each() -> None:
    node = simulated("hgx-a100-4", "nvlink-all-down@1")
    one_more = tuple(
        replace(gpu, nvlinks=links(5, state="inactive")(gpu)) if gpu.index == 0 else gpu for gpu in node.gpus
    )
    result = judged(LINKS, replace(node, gpus=one_more))
    assert sorted(f.subject.gpu for f in bad(result) if f.subject.gpu is not None) == [0, 1, 2, 3]


def test_only_where_a_switch_may_be_the_fabric_manager_is_suspected() -> None:
    [switched] = bad(judged(LINKS, simulated("hgx-h100-8", "nvlink-all-down@1")))
    assert "or a stopped fabric manager" in (switched.likely or "")


def test_one_link_down_names_gpu_and_link() -> None:
    result = judged(LINKS, simulated("hgx-h100-8", "nvlink-link-down@3:7"))
    finds(bad(result), Status.FAIL, "inactive: link 7", "nvidia-smi nvlink --status", gpu=3, found="17 of 18 links up")
    assert not [f for f in result.findings if f.subject.kind == "node"]


def test_links_asleep_are_up_and_disabled_ones_are_a_setting() -> None:
    node = simulated("hgx-h100-8")
    assert judged(LINKS, on_gpus(node, nvlinks=links(state="sleep"))).status is Status.PASS
    [finding] = bad(judged(LINKS, on_gpus(node, 2, nvlinks=links(4, state="disabled"))))
    assert says(finding, "14 of 18", "disabled: links 0, 1, 2, 3", "NVreg_NvLinkDisable")


def test_all_links_down_everywhere_is_one_finding_of_the_node() -> None:
    result = judged(LINKS, on_gpus(simulated("hgx-h100-8"), nvlinks=links(state="inactive")))
    finds(result.findings, Status.FAIL, kind="node", found="no NVLink is up on any of 8 GPUs")


def test_a_finding_of_all_gpus_has_the_readings_of_those_that_differ() -> None:
    inactive = on_gpus(simulated("hgx-h100-8"), nvlinks=links(state="inactive"))
    [finding] = judged(LINKS, on_gpus(inactive, 5, nvlinks=links(state="disabled"))).findings
    sources = [each.source.partition(": ")[0] for each in finding.evidence]
    assert sources == ["GPU 0-4, 6-7", "GPU 5"]


def test_a_virtual_machine_without_its_switches_is_a_warning() -> None:
    told = judged(LINKS, on_gpus(simulated("hgx-h100-vm-8"), nvlinks=links(state="inactive"))).findings
    finds(told, Status.WARN, "without their NVSwitches")


def test_a_lone_gpu_without_peers_is_skipped() -> None:
    node = on_gpus(simulated("gh200-1"), nvlinks=tuple(NvLink(n, state="inactive") for n in range(18)))
    assert only(judged(LINKS, node)).status is Status.SKIP


@pytest.mark.parametrize("check", [LINKS, TOPOLOGY, ERRORS])
@pytest.mark.parametrize("node", ["rtx4090-4", "a100-mig-8", "gh200-1", "cpu-only", "t4-cloud-4"])
def test_where_there_is_no_nvlink_nothing_is_wrong(check: str, node: str) -> None:
    assert judged(check, simulated(node)).status in (Status.SKIP, Status.PASS)
    assert not [f for f in judged(LINKS, simulated(node)).findings if f.status is Status.PASS]


def test_a_model_without_nvlink_is_named_where_the_list_is_empty() -> None:
    result = judged(LINKS, on_gpus(simulated("rtx4090-4"), nvlinks=()))
    assert says(result.findings[0], "GeForce RTX 4090 has no NVLink")
    expect(judged(LINKS, on_gpus(simulated("hgx-h100-8"), nvlinks=())), Status.SKIP)


def test_a_state_that_could_not_be_read_is_unknown() -> None:
    node = simulated("hgx-h100-8")
    assert of_gpu(judged(LINKS, on_gpus(node, 1, nvlinks=links(1, state=FAILED))), 1).status is Status.UNKNOWN
    assert judged(LINKS, on_gpus(node, nvlinks=links(state=ABSENT))).status is Status.SKIP
    assert judged(LINKS, on_gpus(node, nvlinks=FAILED)).status is Status.UNKNOWN


def test_a_link_whose_state_may_not_be_read_is_not_a_link_that_is_down() -> None:
    denied = on_gpus(simulated("hgx-h100-8"), 1, nvlinks=links(1, state=Missing("no permission", "denied")))
    assert of_gpu(judged(LINKS, denied), 1).status is Status.SKIP


def test_unbridged_cards_are_fine() -> None:
    result = judged(LINKS, simulated("h100-pcie-2-unbridged"))
    assert result.status is Status.PASS
    assert "no NVLink bridge" in found(result.findings[0])


def test_bridged_cards_asked_for_by_profile_must_be_bridged() -> None:
    node = on_gpus(simulated("h100-nvl-2"), nvlinks=links(state="inactive"))
    node = on_pairs(node, lambda pair: replace(pair, nvlinks=0, path="SYS"))
    assert judged(LINKS, node).status is Status.PASS
    assert judged(LINKS, node, profile=profile_for(node, "h100-nvl-2")).status is Status.FAIL


def test_failed_links_in_the_kernel_log_speak_against_a_missing_bridge() -> None:
    log = (KernelEvent("nvlink", "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed"),)
    node = simulated("h100-pcie-2-unbridged", kernel_log__events=log)
    assert judged(LINKS, node).status is Status.WARN


def test_a_half_dead_bridge_fails_and_a_missing_one_of_three_warns() -> None:
    node = simulated("h100-nvl-2")
    broken = judged(LINKS, on_gpus(node, nvlinks=links(1, state="inactive")))
    assert {f.status for f in bad(broken)} == {Status.FAIL}
    partly = judged(LINKS, on_gpus(node, nvlinks=links(4, state="inactive")))
    assert {f.status for f in bad(partly)} == {Status.WARN}
    assert says(partly.findings[0], "only 2 of 3 bridges")


def test_fewer_links_than_the_partner_fail_even_in_whole_bridges() -> None:
    [finding] = bad(judged(LINKS, on_gpus(simulated("h100-nvl-4"), 1, nvlinks=links(4, state="inactive"))))
    assert (finding.status, finding.subject.gpu) == (Status.FAIL, 1)


def test_a_pair_without_the_bridge_that_others_have_is_a_warning_and_a_single_card_is_not() -> None:
    node = simulated("h100-nvl-4")
    for gpu in (2, 3):
        node = on_gpus(node, gpu, nvlinks=links(state="inactive", remote_bus_id=None))
    node = on_pairs(node, lambda p: replace(p, nvlinks=0, path="SYS") if {p.a, p.b} == {2, 3} else p)
    assert {f.subject.gpu for f in bad(judged(LINKS, node))} == {2, 3}
    three = replace(node, gpus=node.gpus[:3])
    assert judged(LINKS, three).status is Status.PASS


def test_without_a_profile_the_peers_judge() -> None:
    node = simulated("hgx-h100-8", "nvlink-link-down@5")
    [finding] = bad(judged(LINKS, node, profile=NO_PROFILE))
    assert (finding.status, finding.subject.gpu) == (Status.FAIL, 5)
    assert "as on most GPUs here" in present(finding.expected).text
    two = replace(node, gpus=node.gpus[4:6])
    finds(bad(judged(LINKS, two, profile=NO_PROFILE)), Status.WARN, gpu=5)


def test_a_gpu_without_any_link_fails_beside_one_that_has_all_of_its_own() -> None:
    node = on_gpus(simulated("dgx1-v100-8"), 5, nvlinks=links(state="inactive"))
    two = replace(node, gpus=node.gpus[4:6])
    finds(bad(judged(LINKS, two)), Status.FAIL, gpu=5, found="0 of 6 links up")
    # if the other GPU has open link ends too, this may be part of a mesh
    part = on_gpus(two, 4, nvlinks=links(2, state="inactive"))
    assert {f.status for f in judged(LINKS, part).findings} == {Status.WARN, Status.PASS}


def test_a_lone_gpu_of_a_dump_without_its_links_is_worth_a_look() -> None:
    node = on_gpus(
        simulated("gh200-1"), name="NVIDIA H100 80GB HBM3", nvlinks=tuple(NvLink(0, "inactive") for _ in "a")
    )
    pasted = replace(node, pci=PciBus())
    assert only(judged(LINKS, pasted)).status is Status.WARN
    assert only(judged(LINKS, node)).status is Status.SKIP


@pytest.mark.parametrize(("number", "status"), [(3, Status.UNKNOWN), (1, Status.UNKNOWN), (4, Status.PASS)])
def test_an_odd_number_of_links_of_an_unknown_model_is_unknown(number: int, status: Status) -> None:
    pair = (GpuPair(0, 1, nvlinks=number),)
    unnamed = Node(gpus=(Gpu(0, "unknown-0"), Gpu(1, "unknown-1")), pairs=pair)
    assert only(judged(TOPOLOGY, unnamed)).status is status


def test_part_of_a_mesh_has_open_ends_by_design() -> None:
    whole = simulated("dgx1-v100-8")
    cloud = replace(whole, gpus=whole.gpus[:4])
    cloud = on_gpus(cloud, nvlinks=links(2, state="inactive"))
    assert judged(LINKS, cloud).status is Status.PASS
    finds(bad(judged(LINKS, on_gpus(whole, 2, nvlinks=links(1, state="inactive")))), Status.FAIL, gpu=2)


def test_an_uncertain_number_of_links_is_a_warning_at_most() -> None:
    node = on_gpus(simulated("hgx-h100-8"), name="NVIDIA H100 64GB HBM2")
    finds(bad(judged(LINKS, on_gpus(node, 3, nvlinks=links(1, state="inactive")))), Status.WARN)


def test_a_mixed_node_is_not_judged_by_its_neighbours_model() -> None:
    node = on_gpus(simulated("hgx-h100-8"), 0, name="NVIDIA H800", nvlinks=lambda gpu: gpu.nvlinks[:8])
    assert judged(LINKS, node).status is Status.PASS


def test_a_slow_link_fails_and_a_slow_node_warns() -> None:
    node = simulated("hgx-h100-8")
    bad_ones = bad(judged(LINKS, on_gpus(node, 4, nvlinks=links(2, speed_gb_s=13.281))))
    finds(bad_ones, Status.FAIL, "2 of 18 links slow: 13.281 GB/s", "26.562", gpu=4)
    expect(judged(LINKS, on_gpus(node, nvlinks=links(speed_gb_s=20.0))), Status.WARN)
    assert judged(LINKS, on_gpus(node, nvlinks=links(speed_gb_s=25.0))).status is Status.PASS
    assert judged(LINKS, on_gpus(node, nvlinks=links(speed_gb_s=0.0)), profile=NO_PROFILE).status is Status.PASS


def test_the_matrix_of_a_switch_is_all_alike() -> None:
    assert found(only(judged(TOPOLOGY, simulated("hgx-h100-8")))) == "28 pairs, all NV18: symmetric"


@pytest.mark.parametrize(
    "node", ["dgx1-v100-8", "h100-nvl-4", "rtx4090-8", "workstation-mixed", "container-2-of-8", "hgx-h100-vm-8"]
)
def test_every_wiring_is_symmetric_in_its_own_way(node: str) -> None:
    assert only(judged(TOPOLOGY, simulated(node))).status is Status.PASS


def test_the_odd_gpu_is_named_where_all_its_pairs_are_narrow() -> None:
    node = on_pairs(simulated("hgx-h100-8"), lambda p: replace(p, nvlinks=17) if 3 in (p.a, p.b) else p)
    finds(judged(TOPOLOGY, node).findings, Status.FAIL, gpu=3, found="7 pairs over NV17")


def test_the_odd_pair_is_named_where_it_is_one() -> None:
    finds(judged(TOPOLOGY, simulated("hgx-h100-8", "nvlink-asymmetric@3-5")).findings, Status.FAIL, gpus=(3, 5))


def test_two_of_eight_in_a_container_are_judged_by_the_model() -> None:
    node = on_pairs(simulated("container-2-of-8"), lambda p: replace(p, nvlinks=9))
    finds(judged(TOPOLOGY, node).findings, Status.FAIL, gpus=(0, 1))


@pytest.mark.parametrize(("node", "status"), [("hgx-h100-8", Status.FAIL), ("hgx-h100-vm-8", Status.WARN)])
def test_no_nvlink_at_all_on_gpus_made_for_it_is_never_a_pass(node: str, status: Status) -> None:
    bare = on_pairs(simulated(node), lambda p: replace(p, nvlinks=0, path="NODE"))
    finds(judged(TOPOLOGY, on_gpus(bare, nvlinks=ABSENT)).findings, status, kind="node")


def mesh_without(*links_gone: tuple[int, int]) -> Node:
    def gone(pair: GpuPair) -> GpuPair:
        count = pair.nvlinks if isinstance(pair.nvlinks, int) else 0
        return replace(pair, nvlinks=count - 1) if (pair.a, pair.b) in links_gone else pair

    return on_pairs(simulated("dgx1-v100-8"), gone)


def test_a_cube_mesh_with_a_dead_link_names_the_pair() -> None:
    finds(judged(TOPOLOGY, mesh_without((3, 7))).findings, Status.FAIL, gpus=(3, 7))
    finds(judged(TOPOLOGY, mesh_without((3, 7), (0, 3))).findings, Status.FAIL, kind="node")


def test_an_unknown_wiring_is_not_judged() -> None:
    node = mesh_without((3, 7))
    assert judged(TOPOLOGY, node, profile=NO_PROFILE).status is Status.PASS


def test_a_bond_of_part_of_a_bridge_fails_and_of_whole_ones_warns() -> None:
    def bond(count: int) -> Node:
        return on_pairs(simulated("h100-nvl-4"), lambda p: replace(p, nvlinks=count) if (p.a, p.b) == (2, 3) else p)

    broken, partly = only(judged(TOPOLOGY, bond(11))), only(judged(TOPOLOGY, bond(8)))
    assert (broken.status, broken.subject.gpus) == (Status.FAIL, (2, 3))
    assert (partly.status, partly.subject.gpus) == (Status.WARN, (2, 3))


def test_a_four_way_bridge_splits_its_links() -> None:
    node = on_gpus(simulated("h100-nvl-4"), name="NVIDIA H100 NVL")
    node = on_pairs(node, lambda p: replace(p, nvlinks=4, path=ABSENT))
    assert judged(TOPOLOGY, node).status is Status.PASS


@pytest.mark.parametrize("word", ["NS", "TNS", "DR", "CNS"])
def test_peer_to_peer_off_between_nvlinked_gpus_fails(word: str) -> None:
    node = on_pairs(
        simulated("hgx-h100-8"), lambda p: replace(p, p2p_read=word, p2p_write="OK") if (p.a, p.b) == (1, 6) else p
    )
    finds(judged(TOPOLOGY, node).findings, Status.FAIL, f"p2p {word}", gpus=(1, 6))


def test_peer_to_peer_switched_off_over_pcie_is_a_warning() -> None:
    node = on_pairs(simulated("l40s-8"), lambda p: replace(p, p2p_read="DR", p2p_write="DR") if p.a == 0 else p)
    finds(judged(TOPOLOGY, node).findings, Status.WARN, gpu=0)


def test_a_gpu_that_lost_all_links_is_said_once() -> None:
    result = judged(TOPOLOGY, simulated("hgx-h100-8", "nvlink-all-down@3"))
    assert [(f.status, f.subject.gpu) for f in result.findings] == [(Status.FAIL, 3)]


def test_a_matrix_that_is_missing_or_has_holes_is_not_judged() -> None:
    node = simulated("hgx-h100-8")
    assert judged(TOPOLOGY, replace(node, pairs=FAILED)).status is Status.UNKNOWN
    assert judged(TOPOLOGY, replace(node, pairs=ABSENT)).status is Status.SKIP
    holes = only(judged(TOPOLOGY, replace(node, pairs=present(node.pairs)[:20])))
    assert holes.status is Status.UNKNOWN  # the other pairs are known
    assert judged(TOPOLOGY, replace(node, gpus=node.gpus[:1])).status is Status.SKIP


@pytest.mark.parametrize("node", ["hgx-h100-8", "h100-nvl-4", "dgx1-v100-8"])
@pytest.mark.parametrize(("kind", "status"), [("failed", Status.UNKNOWN), ("unsupported", Status.SKIP)])
@pytest.mark.parametrize("count", [1, 99])
def test_a_pair_whose_links_were_not_counted_is_not_one_without_links(
    node: str, kind: Any, status: Status, count: int
) -> None:
    """The link is up, and its remote end cannot be read: the reader cannot count what joins the two."""
    facts = simulated(node)
    pairs = (replace(pair, nvlinks=Missing("x", kind), path="NODE") for pair in present(facts.pairs)[:count])
    facts = replace(facts, pairs=(*pairs, *present(facts.pairs)[count:]))
    # what the other pairs show is unknown for one; what none shows is not judged
    assert judged(TOPOLOGY, facts).status is (Status.UNKNOWN if count == 1 else status)


def test_old_counts_are_no_verdict_and_storms_warn_of_the_link() -> None:
    assert judged(ERRORS, simulated("lifetime-counters")).status is Status.PASS
    finds(bad(judged(ERRORS, simulated("hgx-h100-8", "nvlink-errors@2:5"))), Status.WARN, "link 5", gpu=2)


def test_recoveries_have_a_bound_of_their_own() -> None:
    node = simulated("hgx-h100-8")
    few = on_gpus(node, 1, nvlinks=links(1, recovery_errors=9))
    many = on_gpus(node, 1, nvlinks=links(1, recovery_errors=12))
    assert judged(ERRORS, few).status is Status.PASS
    assert "12 NVLink recovery errors" in found(bad(judged(ERRORS, many))[0])


def test_counters_are_judged_where_a_text_shows_no_state_of_the_links() -> None:
    node = on_gpus(simulated("hgx-h100-8", "nvlink-errors@2:5"), nvlinks=links(state=ABSENT))
    finds(bad(judged(ERRORS, node)), Status.WARN, "link 5", gpu=2)
    assert of_gpu(judged(ERRORS, node), 3).status is Status.PASS
    assert judged(LINKS, node).status is Status.SKIP


def test_counters_nobody_read_are_no_pass() -> None:
    silent: dict[str, Any] = {"crc_errors": ABSENT, "replay_errors": ABSENT, "recovery_errors": ABSENT}
    assert judged(ERRORS, on_gpus(simulated("hgx-h100-8"), nvlinks=links(**silent))).status is Status.SKIP


def test_a_registered_fabric_passes_and_none_is_skipped() -> None:
    assert judged(FABRIC, simulated("hgx-h100-8")).status is Status.PASS
    assert judged(FABRIC, simulated("gb200-tray-4")).status is Status.PASS
    assert judged(FABRIC, simulated("l40s-8")).status is Status.SKIP


def test_a_fabric_that_never_started_is_one_finding_of_the_node() -> None:
    finding = only(judged(FABRIC, simulated("hgx-h100-8", "fabric-not-started")))
    assert (finding.status, finding.subject.kind) == (Status.FAIL, "node")
    assert found(finding) == "all 8 GPUs: registration not-started"
    assert says(finding, "802", "nvidia-fabricmanager")


def test_registration_takes_a_while_after_boot() -> None:
    node = simulated("hgx-h100-8", "fabric-in-progress@2")
    assert of_gpu(judged(FABRIC, node), 2).status is Status.FAIL
    booted = replace(node, host=replace(node.host, uptime_s=90.0))
    assert of_gpu(judged(FABRIC, booted), 2).status is Status.WARN


def test_registration_that_ended_badly_says_how() -> None:
    finding = of_gpu(judged(FABRIC, simulated("hgx-h100-8", "fabric-no-resources@1")), 1)
    assert finding.status is Status.FAIL
    assert "insufficient resources" in found(finding)


@pytest.mark.parametrize(
    ("leaf", "value", "status"),
    [
        ("health_bandwidth", "degraded", Status.WARN),
        ("health_summary", "limited capacity", Status.WARN),
        ("access_timeout_recovery", True, Status.WARN),
        ("route_unhealthy", True, Status.FAIL),
        ("health_summary", "unhealthy", Status.FAIL),
        ("incorrect_configuration", "incorrect system guid", Status.FAIL),
        ("incorrect_configuration", "not supported", Status.PASS),
        ("health_summary", "value 4", Status.UNKNOWN),
        ("state", "value 4", Status.UNKNOWN),
        ("clique_id", 0, Status.WARN),
        ("cluster_uuid", "00000000-0000-0000-0000-000000000000", Status.WARN),
    ],
)
def test_the_health_of_the_fabric_is_judged(leaf: str, value: object, status: Status) -> None:
    change: dict[str, Any] = {f"fabric__{leaf}": value}
    node = on_gpus(simulated("gb200-tray-4"), 2, **change)
    assert of_gpu(judged(FABRIC, node), 2).status is status


def test_zero_ids_on_a_node_of_its_own_are_normal() -> None:
    assert judged(FABRIC, on_gpus(simulated("hgx-h100-8"), fabric__clique_id=0)).status is Status.PASS


def test_what_the_fabric_does_not_say_is_no_pass() -> None:
    node = simulated("hgx-h100-8")
    assert judged(FABRIC, on_gpus(node, fabric__state=FAILED)).status is Status.UNKNOWN
    assert judged(FABRIC, on_gpus(node, fabric__status=ABSENT)).status is Status.SKIP


def test_a_lone_gpu_and_mig_have_no_fabric_to_join() -> None:
    alone = on_gpus(simulated("confidential-h100"), fabric__state="not-started", nvlinks=ABSENT)
    assert judged(FABRIC, alone).status is Status.SKIP
    mig = on_gpus(simulated("a100-mig-8"), fabric__state="not-started")
    assert judged(FABRIC, mig).status is Status.SKIP


def test_real_dumps_of_healthy_nodes_raise_no_alarm(captures: Path) -> None:
    from gpudoctor.facts.captures.source import load_source

    # next to them are complaints (cases, blind) and logs of jobs
    dumps = [path for path in captures.iterdir() if path.name not in ("README.md", "blind", "cases", "logs")]
    assert len(dumps) > 5
    for path in dumps:
        node = load_source(str(path)).node
        for check in (LINKS, TOPOLOGY, ERRORS, FABRIC, "pcie.link-speed", "pcie.upstream", "pcie.acs", "pcie.errors"):
            assert not bad(judged(check, node)), (path.name, check)
        assert judged("pcie.link-width", node).status in (Status.PASS, Status.WARN, Status.SKIP), path.name
    h100 = load_source(str(captures / "hgx-h100-dump")).node
    assert node_finding(h100) == "144 of 144 links up"
    assert found(only(judged(TOPOLOGY, h100))) == "28 pairs, all NV18: symmetric"
