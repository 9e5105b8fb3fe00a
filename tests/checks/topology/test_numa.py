"""topology.numa: CPUs of the process near the GPUs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Host, Node, NumaNode
from tests.checks.one_check import expect, judge
from tests.checks.wired import ABSENT, FAILED, bad, found, judged, lost, of_gpu, on_gpus, says, simulated

NUMA = "topology.numa"


def test_gpus_with_cpus_on_their_node_pass_and_name_the_adapters() -> None:
    result = judged(NUMA, simulated("hgx-h100-8"))
    assert result.status is Status.PASS
    assert "112 CPUs" in found(of_gpu(result, 7))
    assert "mlx5_4" in found(of_gpu(result, 7))
    assert "mlx5_0" not in found(of_gpu(result, 7))


def test_gpus_on_the_far_socket_are_a_warning_with_the_way_to_bind() -> None:
    result = judged(NUMA, simulated("hgx-h100-8", host__cpus_usable_list="0-15"))
    assert {f.subject.gpu for f in bad(result)} == {4, 5, 6, 7}
    assert {f.status for f in bad(result)} == {Status.WARN}
    assert says(of_gpu(result, 5), "none of the 16 CPUs", "numactl --cpunodebind=1", "0-15")
    assert "16 CPUs" in found(of_gpu(result, 0))


@pytest.mark.parametrize("node", ["t4-cloud-4", "rtx4090-4", "vgpu-guest-1"])
def test_without_a_numa_node_there_is_nothing_to_be_near_to(node: str) -> None:
    assert judged(NUMA, simulated(node)).status is Status.SKIP


@pytest.mark.parametrize("node", ["gh200-1", "gb200-tray-4"])
def test_memory_of_grace_gpus_is_no_place_for_threads(node: str) -> None:
    assert judged(NUMA, simulated(node)).status is Status.PASS
    on_hbm = 1 if node == "gh200-1" else 2
    assert judged(NUMA, on_gpus(simulated(node), numa_node=on_hbm)).status is Status.SKIP


def test_a_node_that_the_host_does_not_show_is_skipped() -> None:
    assert judged(NUMA, on_gpus(simulated("hgx-h100-8"), numa_node=9)).status is Status.SKIP
    assert judged(NUMA, on_gpus(simulated("hgx-h100-8"), numa_node=-1)).status is Status.SKIP


@pytest.mark.parametrize(("missing", "status"), [(ABSENT, Status.SKIP), (FAILED, Status.UNKNOWN)])
def test_what_was_not_read_is_no_pass(missing: Missing, status: Status) -> None:
    assert judged(NUMA, on_gpus(simulated("hgx-h100-8"), numa_node=missing)).status is status
    assert judged(NUMA, simulated("hgx-h100-8", host__cpus_usable_list=missing)).status is status
    assert judged(NUMA, simulated("hgx-h100-8", host__numa_nodes=missing)).status is status


def test_a_lost_gpu_is_unknown() -> None:
    assert of_gpu(judged(NUMA, lost(simulated("hgx-h100-8"), 0)), 0).status is Status.UNKNOWN


@pytest.mark.parametrize("cpus", ["0-99999999999", "a-b,5-", ""])
def test_garbage_instead_of_cpus_is_no_verdict_and_takes_no_memory(cpus: str) -> None:
    """A facts file may come from anywhere: a range in it could fill the memory of the machine."""
    node = simulated("hgx-h100-8")
    numa_nodes = tuple(replace(each, cpus=cpus) for each in known(node.host.numa_nodes) or ())
    assert judged(NUMA, simulated("hgx-h100-8", host__numa_nodes=numa_nodes)).status is Status.SKIP
    result = judged(NUMA, simulated("hgx-h100-8", host__cpus_usable_list=cpus))
    assert result.status is Status.UNKNOWN
    assert "is no list of CPUs" in (result.findings[0].reason or "")


def test_nodes_with_cpus_and_no_memory_are_named_without_a_gpu_too() -> None:
    nodes = (NumaNode(0, 0, "0-5"), NumaNode(1, 64307, "6-11"), NumaNode(3, 0, "18-23"), NumaNode(252, 16128, "", True))
    result = judge("topology.numa", Node(host=Host(numa_nodes=nodes)))
    expect(result, Status.WARN, "NUMA node 0, 3 has CPUs and no memory")
    assert judge("topology.numa", Node(host=Host(numa_nodes=nodes[1:2]))).status is Status.SKIP
