"""Facts of broken nodes whose values are all well formed: none of them may pass, and what looks like them may."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.captures.leaves import say_absent
from gpudoctor.facts.model.gpu import Gpu, GpuProcess
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, KernelLog, Node, Source, Variable
from gpudoctor.facts.simulated.load import put
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report
from tests.checks.simulated_nodes import findings, packaged
from tests.checks.wired import on_gpus
from tests.narrowed import present

DENIED = Missing("Insufficient Permissions", "denied")


def ids(report: Report, status: Status) -> set[str]:
    return {check for check, _ in findings(report, status)}


def without(node: Node, *indices: int) -> Node:
    """The node after a boot at which these GPUs did not even come up on the bus."""
    gone = {gpu.bus_id for gpu in node.gpus if gpu.index in indices}
    devices = present(node.pci.nvidia_devices)
    pairs = tuple(pair for pair in present(node.pairs) if not {pair.a, pair.b} & set(indices))
    node = put(node, "pci.nvidia_devices", tuple(d for d in devices if d.bus_id not in gone))
    gpus = tuple(gpu for gpu in node.gpus if gpu.index not in indices)
    return put(replace(node, gpus=gpus, pairs=pairs), "driver.device_count", len(gpus))


def denied_fact(fact: Any) -> Any:
    """A copy in which every value is denied."""
    changed: dict[str, Any] = {}
    for name in fact.__struct_fields__:
        value = getattr(fact, name)
        if name in ("index", "bus_id") or name == "errors":
            continue
        changed[name] = (
            denied_fact(value) if hasattr(value, "__struct_fields__") and not isinstance(value, Missing) else DENIED
        )
    return replace(fact, **changed)


def denied(node: Node, *indices: int) -> Node:
    return replace(node, gpus=tuple(denied_fact(gpu) if gpu.index in indices else gpu for gpu in node.gpus))


# an empty socket


def test_seven_of_eight_sxm_gpus_fail_by_the_number_that_is_left_out() -> None:
    report = judge(without(packaged("hgx-h100-8"), 5))
    [(check, finding)] = findings(report, Status.FAIL)
    assert check == "gpu.count"
    assert present(finding.found).text == "7 GPUs on a board of 8: module 5 is missing"


@pytest.mark.parametrize(
    ("numbers", "missing"),
    [
        ((1, 2, 3, 4, 5, 6, 7), "0 or 8"),  # the first number on this board is unknown
        ((0, 1, 2, 3, 4, 5, 6), "7"),
        ((2, 3, 4, 5, 6, 7, 8), "1"),
        ((0, 1, 2, 4, 5, 6, 7), "3"),
        ((1, 2, 3, 5, 6, 7, 8), "4"),
    ],
)
def test_boards_that_count_from_0_and_from_1_name_the_right_module(numbers: tuple[int, ...], missing: str) -> None:
    node = without(packaged("hgx-h100-8"), 7)
    gpus = tuple(put(gpu, "module_id", number) for gpu, number in zip(node.gpus, numbers, strict=True))
    [(_, finding)] = findings(judge(replace(node, gpus=gpus)), Status.FAIL)
    assert present(finding.found).text == f"7 GPUs on a board of 8: module {missing} is missing"


def test_three_of_four_gpus_of_a_tray_fail_too() -> None:
    assert ids(judge(without(packaged("gb200-tray-4"), 1)), Status.FAIL) == {"gpu.count"}


@pytest.mark.parametrize(
    "leaves",
    [
        {"host.virtualization": "container", "host.container": "docker"},
        {"host.virtualization": "vm"},
        {"driver.denied_gpus": ("0000:ab:00.0",)},
        {"environment.variables": (Variable("NVIDIA_VISIBLE_DEVICES", "0,1,2,3,4,6,7"),)},
    ],
)
def test_seven_gpus_that_were_given_on_purpose_are_no_fault(leaves: dict[str, Any]) -> None:
    node = without(packaged("hgx-h100-8"), 5)
    for leaf, value in leaves.items():
        node = put(node, leaf, value)
    assert "gpu.count" not in ids(judge(node), Status.FAIL) | ids(judge(node), Status.WARN)


def test_where_nothing_tells_whether_it_is_a_container_an_empty_socket_is_a_warning() -> None:
    node = put(without(packaged("hgx-h100-8"), 5), "host.virtualization", Missing("not in this capture"))
    assert "gpu.count" in ids(judge(node), Status.WARN)
    assert "gpu.count" not in ids(judge(node), Status.FAIL)


def test_a_server_of_six_v100_is_at_most_a_warning() -> None:
    # IBM AC922: 6 sockets, all in use; the V100 reports a module id too
    node = without(packaged("dgx1-v100-8"), 6, 7)
    gpus = tuple(put(gpu, "module_id", number) for number, gpu in enumerate(node.gpus))
    report = judge(put(replace(node, gpus=gpus), "host.virtualization", "none"))
    assert ids(report, Status.FAIL) == set()
    assert "gpu.count" in ids(report, Status.WARN)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_smaller_boards_and_gpus_that_were_handed_on_are_no_empty_sockets(count: int) -> None:
    assert "gpu.count" not in ids(judge(without(packaged("hgx-h100-8"), *range(count, 8))), Status.FAIL)


# GPUs that reported nothing


@pytest.mark.parametrize("indices", [(3,), tuple(range(8))])
def test_a_gpu_whose_readings_were_all_denied_is_unknown(indices: tuple[int, ...]) -> None:
    report = judge(denied(packaged("hgx-h100-8"), *indices))
    assert (report.verdict, report.exit_code) == ("unknown", 3)
    silent = {f.subject.gpu for check, f in findings(report, Status.UNKNOWN) if check == "gpu.lost"}
    assert silent == set(indices)
    # the kernel log does not come from the GPU
    passed = {
        f.subject.gpu for check, f in findings(report, Status.PASS) if check.startswith("gpu.") and check != "gpu.xid"
    }
    assert passed & set(indices) == set()


def test_a_gpu_that_says_nothing_beside_peers_that_do_is_unknown() -> None:
    node = packaged("hgx-h100-8")
    statuses = []
    for bare in (Gpu(0, node.gpus[0].bus_id), say_absent(Gpu(0, node.gpus[0].bus_id))):
        report = judge(replace(node, gpus=(bare, *node.gpus[1:])))
        statuses.append(
            {f.status.value for r in report.checks if r.id == "gpu.lost" for f in r.findings if f.subject.gpu == 0}
        )
    assert statuses == [{"unknown"}, {"unknown"}]


def test_a_few_denied_values_leave_the_rest_to_be_judged() -> None:
    node = on_gpus(packaged("hgx-h100-8"), utilization__gpu_pct=DENIED, processes=DENIED)
    assert judge(node).verdict == "pass"


def test_zero_degrees_watts_and_megahertz_at_once_are_no_readings() -> None:
    zeros = on_gpus(packaged("hgx-h100-8"), thermal__gpu_c=0, power__draw_w=0.0, clocks__sm_mhz=0)
    report = judge(zeros)
    assert (report.verdict, report.exit_code) == ("unknown", 3)
    assert {"gpu.temperature", "gpu.lost", "gpu.clocks"} <= ids(report, Status.UNKNOWN)


# the host


def test_memory_that_is_used_up_fails_and_beside_a_job_warns() -> None:
    node = put(packaged("hgx-h100-8"), "host.ram_available_mib", 100)
    assert ids(judge(node), Status.FAIL) == {"host.ram-per-gpu"}
    job = (GpuProcess(4711, "python3", "C", 60_000, "eve"),)
    assert "host.ram-per-gpu" in ids(judge(on_gpus(node, processes=job)), Status.WARN)
    # in a container the job's processes do not show
    assert "host.ram-per-gpu" in ids(judge(on_gpus(node, memory_used_mib=60_000)), Status.WARN)


def test_shared_memory_that_is_full_fails_and_for_one_gpu_warns() -> None:
    assert ids(judge(put(packaged("hgx-h100-8"), "host.shm_free_mib", 0)), Status.FAIL) == {"host.shm"}
    assert "host.shm" in ids(judge(put(packaged("gh200-1"), "host.shm_free_mib", 0)), Status.WARN)


def rdma(node: Node, **leaves: Any) -> Node:
    ports = present(node.network.rdma_ports)
    return put(node, "network.rdma_ports", tuple(replace(port, **leaves) for port in ports))


def test_a_training_node_with_all_ports_down_warns() -> None:
    report = judge(rdma(packaged("hgx-h100-8"), state="DOWN", physical_state="Polling"))
    assert ids(report, Status.WARN) == {"network.infiniband"}
    assert ids(report, Status.FAIL) == set()


def test_one_idle_adapter_in_a_workstation_is_no_alarm_unless_a_cable_is_in_it() -> None:
    node, server = packaged("rtx4090-4"), packaged("hgx-h100-8").network.rdma_ports
    node = put(node, "network.rdma_ports", present(server)[:1])
    assert judge(rdma(node, state="DOWN", physical_state="Disabled")).verdict == "pass"
    waiting = judge(rdma(node, state="INIT", physical_state="LinkUp"))
    assert ids(waiting, Status.WARN) == {"network.infiniband"}


def test_the_pass_of_a_capture_says_how_little_could_be_looked_at() -> None:
    node = packaged("hgx-h100-8")
    capture = Node(source=replace(node.source, kind="capture"), driver=node.driver, gpus=node.gpus)
    report = judge(capture)
    assert (report.verdict, report.exit_code) == ("pass", 0)
    looked = sum(check.status is not Status.SKIP for check in report.checks)
    asked = sum(check.level == "quick" for check in report.checks)
    assert (report.evaluated.checks, report.evaluated.of, report.evaluated.partly) == (looked, asked, False)
    assert report.reason.startswith("PASS ")
    little = judge(replace(capture, driver=Driver(), gpus=(Gpu(0, "unknown-0", thermal=node.gpus[0].thermal),)))
    assert (little.verdict, little.exit_code, little.evaluated.partly) == ("pass", 0, True)
    assert little.reason == f"PARTLY JUDGED, {little.evaluated.words}: nothing wrong in these"


THERE = ({"driver": Driver(module_loaded=True, init_code=0)}, {"kernel_log": KernelLog(events=(), host_events=())})


@pytest.mark.parametrize("facts", THERE, ids=["driver", "log"])
def test_what_passes_because_it_is_there_is_no_pass_of_a_text(facts: dict[str, Any]) -> None:
    report = judge(Node(source=Source("capture"), **facts))
    assert (report.verdict, report.exit_code) == ("unknown", 3)
    assert report.reason.startswith("UNKNOWN only ")
