"""Healthy nodes, however odd, raise no alarm: every row of the list of false-alarm traps has a node here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.gpu import Gpu, GpuProcess, PcieHop
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Interface, Node
from gpudoctor.facts.simulated.load import load_node, node_names
from gpudoctor.report.judge import Question, judge
from tests.checks.simulated_nodes import findings, healthy_report, packaged
from tests.checks.wired import on_gpus
from tests.narrowed import present

# the node that is not fit, on purpose
DELIBERATE_FAILS = {
    ("cpu-only", "driver.loaded"): "there is no GPU and no driver, and nothing may pretend otherwise",
}
ACCEPTED_WARNS = {
    ("workstation-mixed", "gpu.identical"): "an RTX 4080 beside two RTX 4090 is what this node is for",
    (
        "t4-cloud-4",
        "pcie.link-width",
    ): "x8 of x16 by the host's wiring, which the guest cannot see: worth a look, no fault",
    ("a10g-cloud-1", "pcie.link-width"): "as on t4-cloud-4",
    ("lifetime-counters", "gpu.in-use"): "its GPUs are at work: a load test must not start there",
}


@pytest.mark.parametrize(
    ("status", "but"), [(Status.FAIL, DELIBERATE_FAILS), (Status.WARN, ACCEPTED_WARNS), (Status.UNKNOWN, {})]
)
@pytest.mark.parametrize("name", node_names())
def test_a_healthy_node_has_no_finding_but_for_listed_reasons(
    name: str, status: Status, but: dict[tuple[str, str], str]
) -> None:
    told = {check for check, _ in findings(healthy_report(name), status)}
    assert told == {check for node, check in but if node == name}


def test_the_mixed_workstation_names_the_rtx_4080() -> None:
    report = healthy_report("workstation-mixed")
    [result] = [result for result in report.checks if result.id == "gpu.identical"]
    assert [(finding.status, finding.subject.gpu) for finding in result.findings] == [(Status.WARN, 2)]


def test_an_empty_node_does_not_pass() -> None:
    assert {judge(Node(), question=Question(level=level)).verdict for level in ("quick", "standard")} == {"unknown"}


def as_it_is(node: Node) -> Node:
    return node


def each_gpu(**leaves: Any) -> Callable[[Node], Node]:
    """The node with these leaves on every GPU."""
    return lambda node: on_gpus(node, **leaves)


def sleeping_links(node: Node) -> Node:
    return on_gpus(node, nvlinks=lambda gpu: tuple(replace(link, state="sleep") for link in present(gpu.nvlinks)))


def x8_slots(node: Node) -> Node:
    """Every slot is wired for 8 lanes, and the card runs at them."""

    def path(gpu: Gpu) -> tuple[PcieHop, ...]:
        own, *bridges = present(gpu.pcie.path)
        return (replace(own, width=8), *(replace(hop, width=8, max_width=8) for hop in bridges))

    return on_gpus(node, pcie__width=8, pcie__path=path)


def one_idle_port_down(node: Node) -> Node:
    """An Ethernet port of an adapter without a cable."""
    ports = present(node.network.rdma_ports)
    unused = replace(
        ports[0], device="mlx5_8", link_layer="Ethernet", state="DOWN", physical_state="Disabled", interface="ens9"
    )
    return replace(node, network=replace(node.network, rdma_ports=(*ports, unused)))


def dmabuf_only(node: Node) -> Node:
    return replace(node, network=replace(node.network, peermem_loaded=False, dmabuf_supported=True))


def desktop(node: Node) -> Node:
    shown = (
        GpuProcess(1893, "/usr/lib/xorg/Xorg", "G", 187, "root"),
        GpuProcess(2215, "/usr/bin/gnome-shell", "G", 96, "ada"),
    )
    display: dict[str, Any] = {"settings__display_active": True, "settings__display_attached": True}
    return on_gpus(node, 0, processes=shown, memory_used_mib=285, **display)


def scoped_to_a_job(node: Node) -> Node:
    """A Slurm job owns GPUs 0 and 1; another job computes on the others."""
    other = (GpuProcess(4711, "python3", "C", 60_000, "eve"),)
    gpus = tuple(replace(gpu, processes=other, memory_used_mib=60_100) if gpu.index > 1 else gpu for gpu in node.gpus)
    job = load_node("hgx-h100-8", {"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}).environment
    return replace(node, gpus=gpus, environment=job)


def quiet_switch(node: Node) -> Node:
    """A second interface without a cable beside the one in use."""
    interfaces = present(node.network.interfaces)
    return replace(node, network=replace(node.network, interfaces=(*interfaces, Interface("eno2", "down", 1500))))


# trap number -> (what it is, the node, how it differs from the packaged one)
TRAPS: dict[str, tuple[str, Callable[[Node], Node]]] = {
    "1 idle link at generation 1": ("rtx4090-8", as_it_is),
    "1 half of the links awake": ("rtx4090-8", lambda n: on_gpus(n, 0, pcie__generation=4)),
    "2 slots of 8 lanes by design": ("rtx4090-4", x8_slots),
    "2 all L40S on x8 slots": ("l40s-8", x8_slots),
    "3 bridges hidden in a VM": ("t4-cloud-4", as_it_is),
    "3 no sysfs in the container": ("container-2-of-8", each_gpu(pcie__path={"missing": "no /sys/bus/pci here"})),
    "4 no NVLink by design": ("l40s-8", as_it_is),
    "4 twelve links down without a bridge": ("h100-pcie-2-unbridged", as_it_is),
    "5 bridges in pairs": ("h100-nvl-4", as_it_is),
    "6 NVLinks asleep": ("hgx-h100-8", sleeping_links),
    "7 lifetime counters": ("lifetime-counters", as_it_is),
    "8 software power cap at full load": ("lifetime-counters", as_it_is),
    "9 benign clock reasons": ("hgx-h100-8", each_gpu(clocks__event_reasons=["application-clocks", "sync-boost"])),
    "9 display clocks on a desktop": ("rtx4090-4", each_gpu(clocks__event_reasons=["display-clocks"])),
    "10 microseconds of throttling": (
        "hgx-h100-8",
        each_gpu(throttle_times__hw_thermal_us=19, throttle_times__hw_power_brake_us=3),
    ),
    "11 MIG": ("a100-mig-8", as_it_is),
    "12 vGPU guest": ("vgpu-guest-1", as_it_is),
    "13 GeForce": ("rtx4090-4", as_it_is),
    "13 another board partner's power limit": (
        "rtx4090-4",
        each_gpu(power__limit_w=480, power__default_limit_w=480, power__requested_limit_w=480, power__max_limit_w=600),
    ),
    "14 container with a subset": ("container-2-of-8", as_it_is),
    "14 Slurm job with a subset": ("slurm-2-of-8", as_it_is),
    "14 Slurm job whose device files say nothing": (
        "slurm-2-of-8",
        lambda n: replace(n, driver=replace(n.driver, denied_gpus=Missing("not read"))),
    ),
    "15 cgroup limits": ("container-2-of-8", as_it_is),
    "16 Grace": ("gh200-1", as_it_is),
    "16 GB10 without memory figures": ("gb10-1", as_it_is),
    "16 GB10 whose driver shows the machine's memory": (
        "gb10-1",
        each_gpu(memory_total_mib=122_570, memory_used_mib=8_370, memory_free_mib=114_200),
    ),
    "17 GB200 tray": ("gb200-tray-4", as_it_is),
    "18 no fabric": ("l40s-8", as_it_is),
    "19 fastest first on a mixed machine": (
        "display-plus-a100",
        lambda n: replace(n, environment=load_node("cpu-only", {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}).environment),
    ),
    "20 display GPU beside compute GPUs": ("display-plus-a100", as_it_is),
    "20 a desktop on one of them": ("rtx4090-4", desktop),
    "21 persistence off in a VM": ("hgx-h100-vm-8", each_gpu(settings__persistence=False)),
    "21 persistence off in a container": ("container-2-of-8", each_gpu(settings__persistence=False)),
    "22 Xids of applications": ("lifetime-counters", as_it_is),
    "23 repaired long ago": ("hgx-h100-8", each_gpu(ecc__uncorrected_aggregate=3)),
    "24 row remap pending": ("hgx-h100-8", each_gpu(memory_repair__remap_pending=True)),
    "25 air-cooled and warm, all alike": ("rtx4090-8", each_gpu(thermal__gpu_c=74, thermal__margin_c=10)),
    "26 an uncabled Ethernet port": ("hgx-h100-8", one_idle_port_down),
    "26 dma-buf instead of nvidia_peermem": ("hgx-h100-8", dmabuf_only),
    "27 IOMMU translated in a confidential VM": ("confidential-h100", as_it_is),
    "27 ACS on Grace": ("gb200-tray-4", as_it_is),
    "32 confidential computing": ("confidential-h100", as_it_is),
    "33 ECC change pending": ("rtx4090-4", each_gpu(ecc__pending=True)),
    "34 a slow driver without persistence": (
        "rtx4090-8",
        lambda n: replace(
            on_gpus(n, settings__persistence=False), driver=replace(n.driver, init_s=7.5, slowest_call_s=2.4)
        ),
    ),
    "35 other jobs on a shared node": ("hgx-h100-8", scoped_to_a_job),
    "36 kernel log for root only": ("dmesg-restricted", as_it_is),
    "37 utilisation answers unknown error under WSL2": ("wsl2-1", as_it_is),
    "37 unknown error for what the slot can do, and two VBIOSes, in a cloud": ("gcp-v100-8", as_it_is),
    "an interface without a cable": ("rtx4090-4", quiet_switch),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_for_naive_checks_is_no_failure_here(trap: str) -> None:
    name, variation = TRAPS[trap]
    report = judge(variation(packaged(name)))
    failed = [(check, f.subject.label, f.found) for check, f in findings(report, Status.FAIL)]
    assert failed == []


def test_a_kernel_log_that_may_not_be_read_is_no_pass() -> None:
    report = healthy_report("dmesg-restricted")
    assert next(check.status for check in report.checks if check.id == "gpu.xid") is Status.SKIP


@pytest.mark.parametrize("name", ["wsl2-1", "gcp-v100-8"])
def test_one_value_that_answers_unknown_error_leaves_a_node_fit(name: str) -> None:
    assert packaged(name).gpus[0].errors, "nothing went wrong on this node: it stands for none"
    report = healthy_report(name)
    assert (report.verdict, report.exit_code) == ("pass", 0)
    assert {f.status for check in report.checks if check.id == "gpu.lost" for f in check.findings} == {Status.PASS}


@pytest.mark.parametrize("name", ["gcp-v100-8", "t4-cloud-4", "hgx-h100-vm-8"])
def test_a_container_in_a_vm_is_judged_as_the_vm_is(name: str) -> None:
    """As in Kubernetes on cloud machines: boards of several VBIOSes, bridges and persistence are the provider's."""
    vm = on_gpus(packaged(name), settings__virtualization="none", settings__persistence=False)
    pod = replace(vm, host=replace(vm.host, virtualization="container", container="kubernetes"))
    warned = {check for check, _ in findings(judge(pod), Status.WARN)}
    assert warned == {check for node, check in ACCEPTED_WARNS if node == name}
    statuses = {check.id: check.status for check in judge(pod).checks}
    assert (statuses["pcie.upstream"], statuses["pcie.acs"]) == (Status.SKIP, Status.SKIP)


def test_facts_that_a_vm_hides_are_no_pass() -> None:
    node = packaged("t4-cloud-4")
    assert isinstance(node.pci.iommu, Missing)
    statuses = {check.id: check.status for check in healthy_report("t4-cloud-4").checks}
    assert statuses["pcie.upstream"] is Status.SKIP
    assert statuses["pcie.acs"] is Status.SKIP


@pytest.mark.parametrize(
    ("name", "why"), [("slurm-2-of-8", "device cgroup"), ("container-2-of-8", "inside a container (docker)")]
)
def test_a_subset_says_what_was_not_judged_and_why(name: str, why: str) -> None:
    [note] = healthy_report(name).run.notes
    assert note.startswith("2 of 8 GPUs judged, 6 out of scope: ")
    assert why in note
