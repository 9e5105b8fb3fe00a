# ruff: noqa: N802, N815 - the names are NVML's own
"""What NVML answers about a `Node`: one method per function, in NVML's own numbers and structs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pynvml

from gpudoctor.facts import nvml_words as words
from gpudoctor.facts.gpu import EVENT_REASONS, Gpu, GpuPair, MigInstance, NvLink
from gpudoctor.facts.missing import Missing, known
from gpudoctor.facts.node import Node
from gpudoctor.facts.sysfs import parse_cpu_list
from tests.fake_nvml_tables import FIELDS, HOT, LEAVES, SLOWED_TIMES, WATT_FIELDS, WATTS, WORDS

_CODES = {"unsupported": 3, "absent": 3, "denied": 4, "failed": 999}
_UP = ("active", "sleep")


class FakeHandle(msgspec.Struct, frozen=True):
    """A GPU by NVML index, or one of its MIG instances."""

    index: int
    instance: int | None = None


def give(leaf: Any) -> Any:
    """The value, or NVML's error for a leaf that is Missing."""
    if isinstance(leaf, Missing):
        raise pynvml.NVMLError(_CODES[leaf.kind])
    return leaf


def _number(leaf: Any, names: Mapping[int, str]) -> int:
    text = give(leaf)
    numbers = [number for number, name in names.items() if name == text]
    # "value 9": a number that has no word yet
    return numbers[0] if numbers else int(str(text).removeprefix("value "))


def _leaf(gpu: Gpu, path: str) -> Any:
    leaf: Any = gpu
    for name in path.split("."):
        leaf = getattr(leaf, name)
    value = give(leaf)
    return int(value) if isinstance(value, bool) else value


class Answers:
    """`to` answers a function by its name, `field` a field value; pynvml.NVMLError as the driver would raise it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.gpus = {gpu.index: gpu for gpu in node.gpus}
        # traffic is no fact: KB/s by counter (0 sent, 1 received), and KiB by (GPU, field 138 sent or 139 received)
        self.pcie_kb_s = {0: 1_250_000, 1: 2_500_000}
        self.nvlink_kib: dict[tuple[int, int], int] = {}

    def _gpu(self, handle: FakeHandle) -> Gpu:
        return self.gpus[handle.index]

    def to(self, name: str) -> Callable[..., Any] | None:
        """What answers this function; None where the fake does not know it."""
        if name in LEAVES:
            return lambda handle, *_: _leaf(self._gpu(handle), LEAVES[name])
        if name in WORDS:
            path, numbers = WORDS[name]
            return lambda handle: _number(_leaf(self._gpu(handle), path), numbers)
        if name in WATTS:
            return lambda handle: _mw(_leaf(self._gpu(handle), WATTS[name]))
        answer: Callable[..., Any] | None = getattr(self, name, None)
        return answer

    # the system

    def nvmlInit(self) -> None:
        code = known(self.node.driver.init_code)
        if code:
            raise pynvml.NVMLError(code)

    def nvmlDeviceGetCount(self) -> int:
        return known(self.node.driver.device_count) or len(self.gpus)

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(give(self.node.driver.library_version))

    def nvmlSystemGetNVMLVersion(self) -> str:
        return f"12.{give(self.node.driver.library_version)}"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        major, minor = give(self.node.driver.cuda_version).split(".")
        return int(major) * 1000 + int(minor) * 10

    def nvmlSystemGetConfComputeState(self) -> Any:
        gpu = next(iter(self.gpus.values()), None)
        return SimpleNamespace(ccFeature=int(give(gpu.settings.confidential_compute if gpu else False)))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeHandle:
        if index not in self.gpus:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return FakeHandle(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeHandle:
        for gpu in self.gpus.values():
            if gpu.uuid == uuid:
                return FakeHandle(gpu.index)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    # identity

    def nvmlDeviceGetPciInfo_v3(self, handle: FakeHandle) -> Any:
        gpu = self._gpu(handle)
        info = pynvml.nvmlPciInfo_t()
        info.busId = _nvml_bus_id(gpu.bus_id)
        info.pciDeviceId = int(known(gpu.pci_device_id) or "0", 16)
        info.pciSubSystemId = int(known(gpu.pci_subsystem_id) or "0", 16)
        return info

    def nvmlDeviceGetUUID(self, handle: FakeHandle) -> str:
        instance = self._instance(handle)
        return str(give(instance.uuid if instance else self._gpu(handle).uuid))

    def nvmlDeviceGetName(self, handle: FakeHandle) -> str:
        instance = self._instance(handle)
        name = give(self._gpu(handle).name)
        return f"{name} MIG {give(instance.profile)}" if instance else str(name)

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeHandle) -> tuple[int, int]:
        major, minor = give(self._gpu(handle).compute_capability).split(".")
        return int(major), int(minor)

    def nvmlDeviceGetModuleId(self, handle: FakeHandle, into: Any) -> int:
        """Given a reference, pynvml fills it and gives the return code instead of raising it."""
        number = self._gpu(handle).module_id
        if isinstance(number, Missing):
            return _CODES[number.kind]
        into._obj.value = number
        return 0

    # memory and PCIe

    def nvmlDeviceGetMemoryInfo(self, handle: FakeHandle, version: int | None = None) -> Any:
        gpu = self._gpu(handle)
        info = pynvml.c_nvmlMemory_v2_t() if version else pynvml.c_nvmlMemory_t()
        info.total = give(gpu.memory_total_mib) << 20
        info.used = give(gpu.memory_used_mib) << 20
        info.free = give(gpu.memory_free_mib) << 20
        if version:
            info.reserved = give(gpu.memory_reserved_mib) << 20
        return info

    def nvmlDeviceGetPcieThroughput(self, handle: FakeHandle, counter: int) -> int:
        give(self._gpu(handle).pcie.generation)
        return self.pcie_kb_s[counter]

    # health

    def nvmlDeviceGetEccMode(self, handle: FakeHandle) -> list[int]:
        ecc = self._gpu(handle).ecc
        return [int(give(ecc.enabled)), int(give(ecc.pending))]

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeHandle, error: int, counter: int) -> Any:
        ecc = self._gpu(handle).ecc
        corrected = (ecc.corrected_volatile, ecc.corrected_aggregate)
        return give((corrected, (ecc.uncorrected_volatile, ecc.uncorrected_aggregate))[error][counter])

    def nvmlDeviceGetMemoryErrorCounter(self, handle: FakeHandle, _error: int, counter: int, _location: int) -> Any:
        ecc = self._gpu(handle).ecc
        return give((ecc.sram_uncorrected_volatile, ecc.sram_uncorrected_aggregate)[counter])

    def nvmlDeviceGetSramEccErrorStatus(self, handle: FakeHandle, into: Any) -> int:
        ecc = self._gpu(handle).ecc
        status = into._obj
        status.volatileUncParity = give(ecc.sram_uncorrected_volatile)
        status.aggregateUncSecDed = give(ecc.sram_uncorrected_aggregate)
        status.bThresholdExceeded = give(ecc.sram_threshold_exceeded)
        return 0

    def nvmlDeviceGetRowRemapperHistogram(self, handle: FakeHandle) -> Any:
        repair = self._gpu(handle).memory_repair
        return SimpleNamespace(
            max=give(repair.banks_max_spare),
            high=give(repair.banks_high_spare),
            partial=give(repair.banks_partial_spare),
            low=give(repair.banks_low_spare),
            none=give(repair.banks_no_spare),
        )

    def nvmlDeviceGetRepairStatus(self, handle: FakeHandle) -> list[int]:
        repair = self._gpu(handle).memory_repair
        return [int(give(repair.channel_repair_pending)), int(give(repair.tpc_repair_pending))]

    # clocks, temperature, power

    def nvmlDeviceGetClockInfo(self, handle: FakeHandle, clock: int) -> Any:
        clocks = self._gpu(handle).clocks
        return give((clocks.graphics_mhz, clocks.sm_mhz, clocks.memory_mhz)[clock])

    def nvmlDeviceGetMaxClockInfo(self, handle: FakeHandle, clock: int) -> Any:
        clocks = self._gpu(handle).clocks
        return give((clocks.graphics_max_mhz, clocks.sm_max_mhz, clocks.memory_max_mhz)[clock])

    def nvmlDeviceGetApplicationsClock(self, handle: FakeHandle, clock: int) -> Any:
        clocks = self._gpu(handle).clocks
        return give(clocks.application_memory_mhz if clock == 2 else clocks.application_graphics_mhz)

    def nvmlDeviceGetDefaultApplicationsClock(self, handle: FakeHandle, clock: int) -> Any:
        clocks = self._gpu(handle).clocks
        return give(clocks.default_memory_mhz if clock == 2 else clocks.default_graphics_mhz)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeHandle) -> int:
        bits = {name: bit for bit, name in EVENT_REASONS.items()}
        reasons = give(self._gpu(handle).clocks.event_reasons)
        return sum(bits[reason] if reason in bits else int(reason, 16) for reason in reasons)

    nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons

    def nvmlDeviceGetTemperatureThreshold(self, handle: FakeHandle, kind: int) -> Any:
        thermal = self._gpu(handle).thermal
        limits = (thermal.shutdown_c, thermal.slowdown_c, thermal.memory_max_c, thermal.max_operating_c)
        return give(limits[kind])

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: FakeHandle) -> list[int]:
        power = self._gpu(handle).power
        return [_mw(power.min_limit_w), _mw(power.max_limit_w)]

    def nvmlDeviceGetUtilizationRates(self, handle: FakeHandle) -> Any:
        rates = self._gpu(handle).utilization
        return SimpleNamespace(gpu=give(rates.gpu_pct), memory=give(rates.memory_pct))

    # settings

    def nvmlDeviceGetMigMode(self, handle: FakeHandle) -> list[int]:
        settings = self._gpu(handle).settings
        return [int(give(settings.mig_enabled)), int(give(settings.mig_pending))]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeHandle) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeHandle, place: int) -> FakeHandle:
        if place >= len(give(self._gpu(handle).settings.mig_instances)):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return FakeHandle(handle.index, place)

    def _instance(self, handle: FakeHandle) -> MigInstance | None:
        if handle.instance is None:
            return None
        instance: MigInstance = give(self._gpu(handle).settings.mig_instances)[handle.instance]
        return instance

    def nvmlDeviceGetGpuInstanceId(self, handle: FakeHandle) -> Any:
        instance = self._instance(handle)
        return give(instance.gpu_instance) if instance else 0

    def nvmlDeviceGetComputeInstanceId(self, handle: FakeHandle) -> Any:
        instance = self._instance(handle)
        return give(instance.compute_instance) if instance else 0

    def nvmlDeviceGetAttributes_v2(self, handle: FakeHandle) -> Any:
        instance = self._instance(handle)
        return SimpleNamespace(memorySizeMB=give(instance.memory_mib) if instance else 0)

    # processes and places

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: FakeHandle) -> list[Any]:
        return self._processes(handle, "C")

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: FakeHandle) -> list[Any]:
        return self._processes(handle, "G")

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: FakeHandle) -> list[Any]:
        return self._processes(handle, "M")

    nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3
    nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses_v3

    def _processes(self, handle: FakeHandle, kind: str) -> list[Any]:
        return [
            SimpleNamespace(
                pid=process.pid,
                usedGpuMemory=None if isinstance(process.memory_mib, Missing) else process.memory_mib << 20,
            )
            for process in give(self._gpu(handle).processes)
            if kind in process.kind.split("+")
        ]

    def nvmlDeviceGetCpuAffinity(self, handle: FakeHandle, size: int) -> list[int]:
        return _mask(parse_cpu_list(give(self._gpu(handle).cpu_affinity)) or frozenset(), size)

    def nvmlDeviceGetMemoryAffinity(self, handle: FakeHandle, size: int, _scope: int) -> list[int]:
        node = give(self._gpu(handle).numa_node)
        return _mask(frozenset() if node is None else frozenset({node}), size)

    # links

    def _link(self, handle: FakeHandle, link: int) -> NvLink:
        links = give(self._gpu(handle).nvlinks)
        if link >= len(links):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        found: NvLink = links[link]
        return found

    def nvmlDeviceGetNvLinkState(self, handle: FakeHandle, link: int) -> int:
        return _number(self._link(handle, link).state, words.LINK_STATES)

    def nvmlDeviceGetNvLinkVersion(self, handle: FakeHandle, link: int) -> int:
        return _number(self._link(handle, link).version, words.LINK_VERSIONS)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: FakeHandle, link: int) -> int:
        return _number(self._link(handle, link).remote_kind, words.LINK_ENDS)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: FakeHandle, link: int) -> Any:
        bus_id = give(self._link(handle, link).remote_bus_id)
        info = pynvml.nvmlPciInfo_t()
        info.busId = b"FFFFFFFF:FF:FF.0" if bus_id is None else _nvml_bus_id(bus_id)
        return info

    def nvmlDeviceGetGpuFabricInfoV(self, handle: FakeHandle, into: Any) -> int:
        fabric = self._gpu(handle).fabric
        info = into._obj
        info.state = _number(fabric.state, words.FABRIC_STATES)
        if info.state == 3:
            info.status = _number(fabric.status, words.ERROR_WORDS)
            info.cliqueId = give(fabric.clique_id)
            info.clusterUuid[:] = bytes.fromhex(give(fabric.cluster_uuid).replace("-", ""))
        health = known(fabric.health_summary)
        if hasattr(info, "healthSummary") and health:
            info.healthSummary = _number(health, words.FABRIC_HEALTH)
        if not hasattr(info, "healthMask"):
            return 0
        info.healthMask = (
            {None: 0, "degraded": 1, "full": 2}[known(fabric.health_bandwidth)]
            | _tristate(fabric.route_unhealthy) << 4
            | _tristate(fabric.access_timeout_recovery) << 6
        )
        if known(fabric.incorrect_configuration) is not None:
            info.healthMask |= _number(fabric.incorrect_configuration, words.FABRIC_CONFIGURATION) << 8
        return 0

    nvmlDeviceGetGpuFabricInfo = nvmlDeviceGetGpuFabricInfoV

    def _pair(self, one: FakeHandle, other: FakeHandle) -> GpuPair:
        a, b = sorted((one.index, other.index))
        found = next((pair for pair in give(self.node.pairs) if (pair.a, pair.b) == (a, b)), None)
        return found or GpuPair(a, b)

    def nvmlDeviceGetTopologyCommonAncestor(self, one: FakeHandle, other: FakeHandle) -> int:
        path = give(self._pair(one, other).path)
        return next(level for level, name in words.PATHS.items() if name == path and level)

    def nvmlDeviceGetP2PStatus(self, one: FakeHandle, other: FakeHandle, index: int) -> int:
        pair = self._pair(one, other)
        return _number((pair.p2p_read, pair.p2p_write)[index], words.P2P_STATUS)

    def field(self, handle: FakeHandle, field: int, scope: int) -> int:
        """One value of nvmlDeviceGetFieldValues."""
        gpu = self._gpu(handle)
        if 161 <= field <= 166:
            return _link_field(self._link(handle, scope), field)
        links: tuple[NvLink, ...] = () if isinstance(gpu.nvlinks, Missing) else gpu.nvlinks
        if field == 91:
            return len(links)
        if field in (138, 139):
            if not links or scope != 0xFFFF_FFFF:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return self.nvlink_kib.get((handle.index, field), 0)
        if field == 147:
            return sum(link.remote_kind == "switch" and link.state in _UP for link in links)
        if field == 230:
            return _number(gpu.recovery_action, words.RECOVERY_ACTIONS)
        driver = tuple(int(part) for part in (known(self.node.driver.library_version) or "0").split("."))
        slowed = SLOWED_TIMES | dict(zip((269, 270, 271) if driver >= (580, 82) else (251, 252, 253), HOT, strict=True))
        if field in slowed:
            return int(_leaf(gpu, slowed[field]) * 1000)  # ns
        if field in WATT_FIELDS:
            return _mw(_leaf(gpu, WATT_FIELDS[field]))
        if field in FIELDS:
            return int(_leaf(gpu, FIELDS[field]))
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _link_field(link: NvLink, field: int) -> int:
    if field == 165:
        return _number(link.state, words.LINK_STATES)
    if field == 166:
        return _number(link.version, words.LINK_VERSIONS)
    if field == 164:
        return _mw(link.speed_gb_s)  # MB/s
    return int(give({161: link.replay_errors, 162: link.recovery_errors, 163: link.crc_errors}[field]))


def _nvml_bus_id(bus_id: str) -> bytes:
    return f"0000{bus_id}".upper().encode()


def _mw(leaf: Any) -> int:
    thousandths: int = round(give(leaf) * 1000)
    return thousandths


def _tristate(leaf: bool | Missing) -> int:
    return 0 if isinstance(leaf, Missing) else 1 if leaf else 2


def _mask(bits: frozenset[int], size: int) -> list[int]:
    masks = [0] * size
    for bit in bits:
        masks[bit // 64] |= 1 << bit % 64
    return masks
