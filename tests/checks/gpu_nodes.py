"""Small nodes for the tests of `driver.*` and `gpu.*`, and the way to judge one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.facts.model.gpu import Clocks, Ecc, Gpu, MemoryRepair, Power, Settings, Thermal, Utilization
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, Host, KernelEvent, KernelLog, Node, PciBus, PciDevice
from gpudoctor.facts.simulated.load import S
from gpudoctor.facts.simulated.load import put as put_leaf
from tests.checks.one_check import env, judge

FAILED = Missing("the call answered with an error", "failed")
DENIED = Missing("no permission", "denied")
UNSUPPORTED = Missing("not supported by this GPU", "unsupported")


def bus_id(index: int) -> str:
    return f"0000:{0x10 + index:02x}:00.0"


def put(struct: S, **leaves: Any) -> S:
    """A copy with leaves changed; `a__b` reaches into a section."""
    for path, value in leaves.items():
        struct = put_leaf(struct, path.replace("__", "."), value)
    return struct


def h100(index: int = 0, /, **leaves: Any) -> Gpu:
    """An idle, healthy H100 as the driver reports it, with leaves changed."""
    gpu = Gpu(
        index=index,
        bus_id=bus_id(index),
        uuid=f"GPU-{index:08x}",
        name="NVIDIA H100 80GB HBM3",
        pci_device_id="233010DE",
        pci_subsystem_id="16C110DE",
        vbios="96.00.99.00.01",
        recovery_action="none",
        memory_total_mib=81559,
        memory_reserved_mib=480,
        memory_used_mib=1,
        ecc=Ecc(
            enabled=True,
            pending=True,
            corrected_volatile=0,
            uncorrected_volatile=0,
            uncorrected_aggregate=0,
            sram_uncorrected_volatile=0,
            sram_uncorrected_aggregate=0,
            sram_threshold_exceeded=False,
        ),
        memory_repair=MemoryRepair(
            remapped_corrected=0, remapped_uncorrected=0, remap_pending=False, remap_failed=False, banks_no_spare=0
        ),
        clocks=Clocks(
            sm_mhz=345,
            sm_max_mhz=1980,
            memory_max_mhz=2619,
            application_graphics_mhz=1980,
            default_graphics_mhz=1980,
            application_memory_mhz=2619,
            default_memory_mhz=2619,
            performance_state=0,
            event_reasons=("idle",),
        ),
        thermal=Thermal(gpu_c=30, memory_c=38, margin_c=57, slowdown_margin_c=-2, max_operating_margin_c=0),
        power=Power(draw_w=70.0, limit_w=700.0, default_limit_w=700.0),
        settings=Settings(persistence=True, compute_mode="default", mig_enabled=False, mig_pending=False),
        processes=(),
        utilization=Utilization(gpu_pct=0),
    )
    return put(gpu, **leaves)


def node(*gpus: Gpu, **leaves: Any) -> Node:
    """A bare-metal node with these GPUs on its bus and a quiet kernel log, with leaves changed."""
    made = Node(
        driver=Driver(
            module_loaded=True,
            module_version="570.124.06",
            library_version="570.124.06",
            cuda_version="12.8",
            init_code=0,
            device_count=len(gpus),
            calls=320,
            slowest_call="nvmlDeviceGetFieldValues",
            slowest_call_s=0.02,
            init_s=0.4,
        ),
        gpus=gpus,
        pci=PciBus(nvidia_devices=tuple(pci(g.index) for g in gpus)),
        host=Host(virtualization="none", container=Missing("not in a container"), uptime_s=86_400.0),
        kernel_log=KernelLog(events=(), source="/dev/kmsg"),
    )
    return put(made, **leaves)


def eight(**odd: Any) -> Node:
    """Eight H100, the sixth (index 5) with leaves changed."""
    return node(*(h100(i, **(odd if i == 5 else {})) for i in range(8)))


def seven_of_eight(**leaves: Any) -> Node:
    """The driver shows seven GPUs; the eighth (index 5 on the bus) is on the bus all the same."""
    shown = tuple(h100(i) for i in range(8) if i != 5)
    bus = PciBus(nvidia_devices=tuple(pci(i) for i in range(8)))
    return put(node(*shown, pci=bus), **leaves)


def job(shown: int, denied: tuple[str, ...] | Missing, **variables: str) -> Node:
    """The first GPUs of an 8 x H100 machine, as a Slurm job sees them that was given only some."""
    bus = PciBus(nvidia_devices=tuple(pci(i) for i in range(8)))
    subject = node(*(h100(i) for i in range(shown)))
    return put(subject, pci=bus, environment=env(**variables), driver__denied_gpus=denied)


def pci(index: int, driver: str | Missing | None = "nvidia", pci_class: str = "0x030200") -> PciDevice:
    return PciDevice(bus_id=bus_id(index), pci_class=pci_class, device_id="0x2330", driver=driver)


def xid(code: int, index: int = 0, text: str = "") -> KernelEvent:
    line = f"NVRM: Xid (PCI:{bus_id(index)[:-2]}): {code}, {text or 'pid=1, name=python3'}"
    return KernelEvent("xid", line, code=code, bus_id=bus_id(index))


def recovery(action: int, words: str, index: int = 0) -> KernelEvent:
    return xid(154, index, f"GPU recovery action changed from 0x0 (None) to 0x{action:x} ({words})")


def findings(check_id: str, node: Node, **case: Any) -> tuple[Finding, ...]:
    return judge(check_id, node, **case).findings


def status(check_id: str, node: Node, **case: Any) -> str:
    return judge(check_id, node, **case).status.value


def bad(check_id: str, node: Node, **case: Any) -> tuple[Finding, ...]:
    """The findings that are neither pass nor skip."""
    return tuple(f for f in findings(check_id, node, **case) if f.status not in (Status.PASS, Status.SKIP))


def only(check_id: str, node: Node, **case: Any) -> Finding:
    [finding] = bad(check_id, node, **case)
    return finding


def text(finding: Finding) -> str:
    return finding.found.text if finding.found else finding.reason or ""


def texts(found: Sequence[Finding]) -> list[str]:
    return [text(f) for f in found]
