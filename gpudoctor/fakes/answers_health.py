# ruff: noqa: N802, N815 - the names are NVML's own
"""What NVML answers about memory, PCIe, health, clocks, heat and power of a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

from gpudoctor.facts.model.gpu import EVENT_REASONS
from gpudoctor.fakes.reported import FakeHandle, ReportedNode, give, mw

_SRAM = 7  # of nvmlMemoryLocation_t


class HealthAnswers(ReportedNode):
    """One method per function of NVML."""

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

    def nvmlDeviceGetMemoryErrorCounter(self, handle: FakeHandle, _error: int, counter: int, location: int) -> Any:
        if location != _SRAM:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        ecc = self._gpu(handle).ecc
        return give((ecc.sram_uncorrected_volatile, ecc.sram_uncorrected_aggregate)[counter])

    def nvmlDeviceGetSramEccErrorStatus(self, handle: FakeHandle, into: Any) -> int:
        ecc = self._gpu(handle).ecc
        status = into._obj
        status.volatileUncParity = give(ecc.sram_uncorrected_volatile)
        status.aggregateUncSecDed = give(ecc.sram_uncorrected_aggregate)
        status.bThresholdExceeded = give(ecc.sram_threshold_exceeded)
        return 0

    def nvmlDeviceValidateInforom(self, handle: FakeHandle) -> None:
        if give(self._gpu(handle).inforom_corrupted):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_CORRUPTED_INFOROM)

    def nvmlDeviceGetRemappedRows(self, handle: FakeHandle) -> tuple[int, int, int, int]:
        repair = self._gpu(handle).memory_repair
        leaves = (repair.remapped_corrected, repair.remapped_uncorrected, repair.remap_pending, repair.remap_failed)
        corrected, uncorrected, pending, failed = (int(give(leaf)) for leaf in leaves)
        return corrected, uncorrected, pending, failed

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: FakeHandle) -> int:
        return int(give(self._gpu(handle).memory_repair.retirement_pending))

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
        return [mw(power.min_limit_w), mw(power.max_limit_w)]

    def nvmlDeviceGetUtilizationRates(self, handle: FakeHandle) -> Any:
        rates = self._gpu(handle).utilization
        return SimpleNamespace(gpu=give(rates.gpu_pct), memory=give(rates.memory_pct))
