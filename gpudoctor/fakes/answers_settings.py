# ruff: noqa: N802, N815 - the names are NVML's own
"""What NVML answers about the settings of a GPU, its MIG instances, its processes and the CPUs near it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.sysfs import parse_cpu_list
from gpudoctor.fakes.reported import FakeHandle, ReportedNode, give, mask


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
