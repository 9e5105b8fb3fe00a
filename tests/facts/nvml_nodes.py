"""Nodes, roots and a listener for the tests of the NVML readers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.model.gpu import (
    Clocks,
    Ecc,
    Fabric,
    Gpu,
    GpuPair,
    MemoryRepair,
    NvLink,
    PcieLink,
    Power,
    Settings,
    Thermal,
    ThrottleTimes,
    Utilization,
)
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing
from gpudoctor.facts.model.node import Driver, Node
from gpudoctor.facts.nvml.channel import CollectorMessage
from gpudoctor.facts.nvml.read_node import read_nvml
from gpudoctor.testing.fake_nvml import FakeNvml, ScriptedFault
from tests.sysfs_tree import write

# functions that a driver of the 470 branch does not have
ABSENT_IN_470 = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetGpuFabricInfo*",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetModuleId",
    "nvmlDeviceGetRepairStatus",
    "nvmlDeviceGetUnrepairableMemoryFlag*",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGet*RunningProcesses_v3",
    "nvmlSystemGetConfComputeState",
)
LAST_FIELD_IN_470 = 160
ASKED_NOT = Missing("not asked: the link leads to a switch", "not_asked")


def make_gpu(index: int, links: int = 18) -> Gpu:
    """A switch-connected H100 in which every number differs, so that no leaf can be mistaken for its neighbour."""
    return Gpu(
        index=index,
        bus_id=f"0000:{0x18 + index:02x}:00.0",
        uuid=f"GPU-{index:08x}-0000-0000-0000-000000000000",
        name="NVIDIA H100 80GB HBM3",
        brand="NVIDIA",
        architecture="Hopper",
        compute_capability="9.0",
        pci_device_id="0x233010de",
        pci_subsystem_id="0x16c110de",
        serial=f"165000000{index:04d}",
        vbios="96.00.74.00.01",
        board_part_number="692-2G520-0200-000",
        minor_number=index + 10,
        module_id=index + 1,
        recovery_action="none",
        inforom_corrupted=False,
        memory_total_mib=81559,
        memory_reserved_mib=551,
        memory_used_mib=17,
        memory_free_mib=80991,
        pcie=PcieLink(
            generation=4,
            generation_max=5,
            device_generation_max=6,
            host_generation_max=UNSUPPORTED,
            width=8,
            width_max=16,
            replays=3,
            replay_rollovers=1,
        ),
        nvlinks=tuple(
            NvLink(
                link=link,
                state="active",
                version="4.0",
                speed_gb_s=26.562,
                remote_kind="switch",
                remote_bus_id=ASKED_NOT,
                crc_errors=100 + link,
                replay_errors=200 + link,
                recovery_errors=300 + link,
            )
            for link in range(links)
        )
        or UNSUPPORTED,
        fabric=Fabric(
            state="completed",
            status="success",
            clique_id=7,
            cluster_uuid="01020304-0506-0708-090a-0b0c0d0e0f10",
            health_summary="limited capacity",
            health_bandwidth="degraded",
            route_unhealthy=True,
            access_timeout_recovery=False,
            incorrect_configuration="insufficient nvlinks",
        ),
        ecc=Ecc(True, False, 1, 2, 3, 4, 5, 6, True),
        memory_repair=MemoryRepair(
            remapped_corrected=2,
            remapped_uncorrected=3,
            remap_pending=True,
            remap_failed=False,
            banks_max_spare=2555,
            banks_high_spare=4,
            banks_partial_spare=3,
            banks_low_spare=2,
            banks_no_spare=1,
            retired_single_bit=8,
            retired_double_bit=9,
            retirement_pending=False,
            channel_repair_pending=True,
            tpc_repair_pending=False,
            unrepairable=False,
        ),
        clocks=Clocks(1000, 1005, 2619, 1980, 1985, 2620, 1500, 1593, 1410, 1215, 2, ("sw-power-cap", "0x200")),
        throttle_times=ThrottleTimes(11, 12, 13, 14, 15),
        thermal=Thermal(
            gpu_c=41,
            memory_c=52,
            slowdown_c=UNSUPPORTED,
            shutdown_c=UNSUPPORTED,
            max_operating_c=UNSUPPORTED,
            memory_max_c=UNSUPPORTED,
            margin_c=46,
            slowdown_margin_c=-2,
            shutdown_margin_c=-8,
            max_operating_margin_c=0,
        ),
        power=Power(120.25, 600.0, 650.0, 700.0, 200.0, 710.0),
        settings=Settings(
            persistence=True,
            compute_mode="exclusive-process",
            mig_enabled=False,
            mig_pending=True,
            mig_instances=(),
            display_attached=True,
            display_active=False,
            addressing_mode="hmm",
            virtualization="passthrough",
            confidential_compute=False,
        ),
        processes=(),
        utilization=Utilization(97, 31),
        numa_node=1,
        cpu_affinity="0-55,112-167",
    )


def make_node(count: int = 2, driver: str = "580.95.05", links: int = 18) -> Node:
    gpus = tuple(make_gpu(index, links) for index in range(count))
    pairs = tuple(GpuPair(a, b, "NODE", links, "OK", "CNS") for a in range(count) for b in range(a + 1, count))
    return Node(
        driver=Driver(init_code=0, library_version=driver, cuda_version="13.0", device_count=count),
        gpus=gpus,
        pairs=pairs,
    )


def with_gpu(node: Node, index: int, **changes: Any) -> Node:
    """The node with leaves of one GPU changed."""
    gpus = tuple(replace(gpu, **changes) if gpu.index == index else gpu for gpu in node.gpus)
    return replace(node, gpus=gpus)


def make_root(folder: Path, version: str = "580.95.05") -> Path:
    """A root on which the kernel module is loaded."""
    module = {"/sys/module/nvidia/initstate": "live", "/sys/module/nvidia/version": version}
    return write(folder, {**module, "/proc/modules": "nvidia 56999936 0 - Live 0x0000000000000000"})


def with_paths(gpus: Iterable[Gpu], node: Node) -> dict[int, Gpu]:
    """The GPUs by index, with the bridges of the node, which the driver does not report."""
    paths = {gpu.index: gpu.pcie.path for gpu in node.gpus}
    return {gpu.index: replace(gpu, pcie=replace(gpu.pcie, path=paths[gpu.index])) for gpu in gpus}


def of_field(field: int, gpu: int | None = None, **answer: Any) -> ScriptedFault:
    """What a field of nvmlDeviceGetFieldValues answers: `value` or `code`."""
    return ScriptedFault("nvmlDeviceGetFieldValues", gpu, field, **answer)


class Heard:
    """Records what is sent, for tests in one process."""

    def __init__(self) -> None:
        self.drivers: list[Driver] = []
        self.parts: list[Gpu] = []
        self.gpus: dict[int, Gpu] = {}
        self.pairs_by_name: dict[tuple[int, int], GpuPair] = {}
        self.handle_errors: dict[int, str] = {}

    def take(self, message: CollectorMessage) -> None:
        if message.driver is not None:
            self.drivers.append(message.driver)
        if message.gpu is not None:
            self.parts.append(message.gpu)
            if message.done:
                self.gpus[message.gpu.index] = message.gpu
        if message.handle_error is not None:
            index, error = message.handle_error
            self.handle_errors[index] = error
        for pair in message.pairs:
            assert (pair.a, pair.b) not in self.pairs_by_name, "a pair was told twice"
            self.pairs_by_name[pair.a, pair.b] = pair


def read(root: Path, node: Node, *faults: ScriptedFault, **fake: Any) -> tuple[Driver, Heard, FakeNvml]:
    """Read the node through the fake driver, in this process."""
    heard = Heard()
    nvml = FakeNvml(node, faults, **fake)
    driver = read_nvml(heard.take, nvml, root)
    return driver, heard, nvml
