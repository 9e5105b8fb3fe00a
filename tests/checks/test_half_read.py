"""Partly lost facts: the rest must neither pass for the whole node nor break up into many faults."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.gpu import Gpu, NvLink, PcieHop
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.simulated.load import put
from tests.checks.one_check import env
from tests.checks.wired import FAILED, judged, lost, simulated
from tests.narrowed import present


def test_a_fabric_that_never_started_stays_one_finding_beside_a_lost_gpu() -> None:
    node = simulated("hgx-h100-8")
    idle = [put(gpu, "fabric.state", "not-started") for gpu in node.gpus]
    idle[5] = replace(idle[5], errors=lost(node, 5).gpus[5].errors)
    result = judged("nvlink.fabric", replace(node, gpus=tuple(idle)))
    found = {(f.status.value, f.subject.kind, f.subject.gpu) for f in result.findings}
    assert found == {("fail", "node", None), ("unknown", "gpu", 5)}


@pytest.mark.parametrize("none", [(), Missing("not supported", "unsupported")])
def test_one_gpu_without_any_nvlink_among_linked_ones_is_named(none: tuple[NvLink, ...] | Missing) -> None:
    node = simulated("hgx-h100-8")
    result = judged("nvlink.links", replace(node, gpus=(replace(node.gpus[0], nvlinks=none), *node.gpus[1:])))
    assert [(f.subject.gpu, f.found and f.found.value) for f in result.findings if f.status is Status.FAIL] == [(0, 0)]
    alone = replace(node, gpus=tuple(replace(gpu, nvlinks=none) for gpu in node.gpus))
    assert judged("nvlink.links", alone).status is Status.SKIP


def test_a_peer_to_peer_status_that_could_not_be_read_is_no_pass() -> None:
    node = simulated("hgx-h100-8")
    pairs = (replace(present(node.pairs)[0], p2p_read=FAILED), *present(node.pairs)[1:])
    assert judged("nvlink.topology", replace(node, pairs=pairs)).status is Status.UNKNOWN


def bridges(gpu: Gpu) -> tuple[PcieHop, ...]:
    return present(gpu.pcie.path)


def test_a_speed_above_that_could_not_be_read_is_no_full_speed() -> None:
    node = simulated("hgx-h100-8")
    path = tuple(replace(hop, max_speed_gt_s=FAILED) for hop in bridges(node.gpus[0]))
    result = judged("pcie.upstream", replace(node, gpus=(put(node.gpus[0], "pcie.path", path), *node.gpus[1:])))
    unknown = [f for f in result.findings if f.status is Status.UNKNOWN]
    assert [(f.subject.gpu, (f.reason or "")[:23]) for f in unknown] == [(0, "speed of the link above")]


def test_a_bridge_whose_redirect_could_not_be_read_is_no_pass() -> None:
    node = simulated("hgx-h100-8")
    *rest, root = bridges(node.gpus[0])
    path = (*rest, replace(root, acs_redirect=FAILED))
    result = judged("pcie.acs", replace(node, gpus=(put(node.gpus[0], "pcie.path", path), *node.gpus[1:])))
    assert [f.subject.gpu for f in result.findings if f.status is Status.UNKNOWN] == [0]


def test_instances_of_mig_that_could_not_be_listed_are_no_pass() -> None:
    node = simulated("a100-mig-8")
    gpu = replace(node.gpus[0], settings=replace(node.gpus[0].settings, mig_instances=FAILED))
    assert judged("gpu.settings", replace(node, gpus=(gpu, *node.gpus[1:]))).status is Status.UNKNOWN


def test_interfaces_that_were_read_in_vain_leave_the_setting_open() -> None:
    node = simulated("hgx-h100-8")
    node = replace(node, environment=env(NCCL_SOCKET_IFNAME="foo"), network=replace(node.network, interfaces=FAILED))
    assert judged("env.nccl", node).status is Status.UNKNOWN


def test_a_limit_that_was_read_in_vain_excuses_nothing_that_fails_already() -> None:
    node = simulated("hgx-h100-8", host__ram_mib=64 * 1024, host__memory_limit_mib=FAILED)
    assert judged("host.ram-per-gpu", node).status is Status.FAIL
