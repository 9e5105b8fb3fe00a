# ruff: noqa: N802, N815 - the names are NVML's own
"""What NVML answers about a `Node`, in NVML's own numbers and structs: the system, which GPU is which, field values."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml

from gpudoctor.facts.model.gpu import NvLink
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import short_bus_id
from gpudoctor.facts.nvml import labels as words
from gpudoctor.facts.system.sysfs import parse_cpu_list
from gpudoctor.fakes.answers_health import HealthAnswers
from gpudoctor.fakes.answers_links import LinkAnswers, link_field
from gpudoctor.fakes.nvml_table import FIELDS, LEAVES, WATT_FIELDS, WATTS, WORDS, slowed_times
from gpudoctor.fakes.reported import UP, FakeHandle, ReportedNode, code_of, give, leaf_of, mask, mw, number, nvml_bus_id

# What NVML answers about the settings of a GPU, its MIG instances, its processes and the CPUs near it.


class SettingsAnswers(ReportedNode):
    """One method per function of NVML."""

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

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: FakeHandle) -> FakeHandle:
        return FakeHandle(handle.index)

    def nvmlDeviceIsMigDeviceHandle(self, handle: FakeHandle) -> int:
        return int(handle.instance is not None)

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
        return mask(parse_cpu_list(give(self._gpu(handle).cpu_affinity)) or frozenset(), size)

    def nvmlDeviceGetMemoryAffinity(self, handle: FakeHandle, size: int, _scope: int) -> list[int]:
        node = give(self._gpu(handle).numa_node)
        return mask(frozenset() if node is None else frozenset({node}), size)


# "index 3: insufficient permissions (4)", as our reader says it
_HANDLE_ERROR = re.compile(r"(?:index|GPU) (\d+): .*\((\d+)\)$")


class NvmlAnswers(HealthAnswers, SettingsAnswers, LinkAnswers):
    """`to` answers a function by its name, `field` a field value; pynvml.NVMLError as the driver would raise it."""

    def to(self, name: str) -> Callable[..., Any] | None:
        """What answers this function; None where the fake does not know it."""
        if name in LEAVES:
            return lambda handle, *_: leaf_of(self._gpu(handle), LEAVES[name])
        if name in WORDS:
            path, numbers = WORDS[name]
            return lambda handle: number(leaf_of(self._gpu(handle), path), numbers)
        if name in WATTS:
            return lambda handle: mw(leaf_of(self._gpu(handle), WATTS[name]))
        answer: Callable[..., Any] | None = getattr(self, name, None) if name.startswith("nvml") else None
        return answer if callable(answer) else None

    # the system

    def nvmlInit(self) -> None:
        driver = self.node.driver
        # a machine without a driver: nobody asked the library, and there is none
        nothing = 12 if driver.module_loaded is False and isinstance(driver.library_version, Missing) else 0
        code = nothing if isinstance(driver.init_code, Missing) else driver.init_code
        if code:
            raise pynvml.NVMLError(code)

    def nvmlInitWithFlags(self, _flags: int = 0) -> None:
        self.nvmlInit()

    def nvmlShutdown(self) -> None:
        pass

    def nvmlErrorString(self, code: int) -> str:
        return words.error_word(code)

    def nvmlDeviceGetCount(self) -> int:
        return known(self.node.driver.device_count) or len(self.gpus)

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(give(self.node.driver.library_version))

    def nvmlSystemGetNVMLVersion(self) -> str:
        return f"12.{give(self.node.driver.library_version)}"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        major, minor = give(self.node.driver.cuda_version).split(".")
        return int(major) * 1000 + int(minor) * 10

    nvmlSystemGetCudaDriverVersion = nvmlSystemGetCudaDriverVersion_v2

    def nvmlSystemGetConfComputeState(self) -> Any:
        gpu = next(iter(self.gpus.values()), None)
        return SimpleNamespace(ccFeature=int(give(gpu.settings.confidential_compute if gpu else False)))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeHandle:
        if index in self.gpus:
            return FakeHandle(index)
        if not 0 <= index < self.nvmlDeviceGetCount():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        told = (_HANDLE_ERROR.match(line) for line in self.node.driver.handle_errors)
        codes = [int(found[2]) for found in told if found and int(found[1]) == index]
        raise pynvml.NVMLError(codes[0] if codes else pynvml.NVML_ERROR_UNKNOWN)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeHandle:
        uuid = _text(uuid)
        for gpu in self.gpus.values():
            if gpu.uuid == uuid:
                return FakeHandle(gpu.index)
            for place, instance in enumerate(known(gpu.settings.mig_instances) or ()):
                if instance.uuid == uuid:
                    return FakeHandle(gpu.index, place)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetHandleBySerial(self, serial: str) -> FakeHandle:
        return self._only("serial", _text(serial))

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> FakeHandle:
        return self._only("bus_id", short_bus_id(_text(bus_id)))

    nvmlDeviceGetHandleByPciBusId_v2 = nvmlDeviceGetHandleByPciBusId

    def nvmlDeviceQueryDrainState(self, place: Any) -> int:
        # the binding tells text or bytes, by its version
        bus_id = place.busId if isinstance(place.busId, str) else place.busId.decode()
        return int(short_bus_id(bus_id) in (known(self.node.driver.drained_gpus) or ()))

    def _only(self, leaf: str, value: str) -> FakeHandle:
        found = next((gpu for gpu in self.gpus.values() if getattr(gpu, leaf) == value), None)
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return FakeHandle(found.index)

    # identity

    def nvmlDeviceGetIndex(self, handle: FakeHandle) -> int:
        return self._gpu(handle).index

    def nvmlDeviceGetPciInfo_v3(self, handle: FakeHandle) -> Any:
        gpu = self._gpu(handle)
        info = pynvml.nvmlPciInfo_t()
        info.busId = nvml_bus_id(gpu.bus_id)
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

    def nvmlDeviceGetModuleId(self, handle: FakeHandle, into: Any = None) -> int:
        """Given a reference, pynvml fills it and gives the return code instead of raising it."""
        module = self._gpu(handle).module_id
        if into is None:
            return int(give(module))
        if isinstance(module, Missing):
            return code_of(module)
        into._obj.value = module
        return 0

    def field(self, handle: FakeHandle, field: int, scope: int) -> int:
        """One value of nvmlDeviceGetFieldValues."""
        gpu = self._gpu(handle)
        if 161 <= field <= 166:
            return link_field(self._link(handle, scope), field)
        links: tuple[NvLink, ...] = () if isinstance(gpu.nvlinks, Missing) else gpu.nvlinks
        if field == 91:
            if isinstance(gpu.nvlinks, Missing) and gpu.nvlinks.kind in ("denied", "failed"):
                give(gpu.nvlinks)
            return len(links)
        if field in (138, 139):
            if not links or scope != 0xFFFF_FFFF:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return self.nvlink_kib.get((handle.index, field), 0)
        if field == 147:
            return sum(link.remote_kind == "switch" and link.state in UP for link in links)
        if field == 230:
            return number(gpu.recovery_action, words.RECOVERY_ACTIONS)
        driver = tuple(int(part) for part in (known(self.node.driver.library_version) or "0").split("."))
        slowed = slowed_times(driver)
        if field in slowed:
            return int(leaf_of(gpu, slowed[field]) * 1000)  # ns
        if field in WATT_FIELDS:
            return mw(leaf_of(gpu, WATT_FIELDS[field]))
        if field in FIELDS:
            return int(leaf_of(gpu, FIELDS[field]))
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
