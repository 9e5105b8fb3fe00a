"""The table's rows of one GPU: all getters except field values and links."""

from __future__ import annotations

from typing import Any

from gpudoctor.facts.model.gpu import EVENT_REASONS, Gpu, GpuProcess
from gpudoctor.facts.model.missing import NOT_IN_FILE, UNSUPPORTED, Missing, known
from gpudoctor.facts.nvml import codes
from gpudoctor.facts.system.sysfs import parse_cpu_list
from gpudoctor.testing.nvml_table import NvmlTable, number_of, thousandths

_NOT_FOUND = 6
_CORRUPTED_INFOROM = 14
_SAMPLE_PERIOD_US = 167_000
UNKNOWN_BYTES = (1 << 64) - 1
_MASK_BYTES = 512  # 4096 CPUs
_KINDS = {"Compute": "C", "Graphics": "G", "MPSCompute": "M"}
PCI_INFO = "16s5I32s"


def version_of(size: int, number: int) -> int:
    """The version number in the first field of a struct of that size."""
    return size | number << 24


def add_gpu(table: NvmlTable, gpu: Gpu) -> None:
    """Add everything but field values, NVLinks and MIG instances."""
    _add_identity(table, gpu)
    _add_memory(table, gpu)
    _add_state(table, gpu)
    _add_health(table, gpu)
    _add_clocks(table, gpu)
    _add_power(table, gpu)
    _add_settings(table, gpu)
    _add_processes(table, gpu)


def _add_identity(table: NvmlTable, gpu: Gpu) -> None:
    me = gpu.index
    texts = {"UUID": gpu.uuid, "Name": gpu.name, "Serial": gpu.serial, "VbiosVersion": gpu.vbios}
    for name, text in {**texts, "BoardPartNumber": gpu.board_part_number}.items():
        table.put_text(f"nvmlDeviceGet{name}", me, text)
    numbers = {
        "Brand": number_of(gpu.brand, codes.BRANDS),
        "Architecture": number_of(gpu.architecture, codes.ARCHITECTURES),
        "MinorNumber": gpu.minor_number,
        "ModuleId": gpu.module_id,
        "Index": me,
    }
    for name, number in numbers.items():
        table.put(f"nvmlDeviceGet{name}", me, "I", number)
    table.put("nvmlDeviceIsMigDeviceHandle", me, "I", 0)
    capability = gpu.compute_capability
    parts = capability.split(".") if isinstance(capability, str) else []
    numbered = [int(part) for part in parts if part.isdecimal()]
    if len(numbered) == 2:
        table.put("nvmlDeviceGetCudaComputeCapability", me, "2i", *numbered)
    else:
        table.put("nvmlDeviceGetCudaComputeCapability", me, "", UNSUPPORTED if parts else capability)
    info = pci_info(gpu.bus_id, _hexadecimal(gpu.pci_device_id), _hexadecimal(gpu.pci_subsystem_id))
    table.put("nvmlDeviceGetPciInfo_v3", me, PCI_INFO, *info)
    table.put("nvmlDeviceGetPciInfo_v2", me, "16s5I4I", *info[:-1], 0, 0, 0, 0)


def pci_info(bus_id: str, device_id: int = 0, subsystem_id: int = 0) -> tuple[Any, ...]:
    """nvmlPciInfo_t of a bus id, in the format PCI_INFO. One that cannot be parsed is kept as text, with zeros."""
    domain, _, rest = bus_id.partition(":")
    bus, _, device = rest.partition(":")
    try:
        places = int(domain, 16), int(bus, 16), int(device.partition(".")[0], 16)
    except ValueError:
        places = (0, 0, 0)
    text = f"{domain:0>8}:{rest}".upper().encode("ascii", "replace")
    return (bus_id.upper().encode("ascii", "replace")[:15], *places, device_id, subsystem_id, text[:31])


def _hexadecimal(leaf: Any) -> int:
    try:
        return int(known(leaf) or "0", 16)
    except ValueError:
        return 0


def _add_memory(table: NvmlTable, gpu: Gpu) -> None:
    """What is used, where a file gives the total alone: nothing. One figure that failed makes the call fail."""

    def size(mib: Any) -> Any:
        return mib if isinstance(mib, Missing) else mib << 20

    total, free, used = size(gpu.memory_total_mib), size(gpu.memory_free_mib), size(gpu.memory_used_mib)
    reserved = size(gpu.memory_reserved_mib)
    if not isinstance(total, Missing):
        reserved = 0 if reserved == NOT_IN_FILE else reserved
        used = 0 if used == NOT_IN_FILE else used
        free = total - (known(reserved) or 0) - (known(used) or 0) if free == NOT_IN_FILE else free
    table.put("nvmlDeviceGetMemoryInfo", gpu.index, "3Q", total, free, used)
    table.put_versioned("nvmlDeviceGetMemoryInfo_v2", gpu.index, version_of(40, 2), "4x4Q", total, reserved, free, used)


def _add_state(table: NvmlTable, gpu: Gpu) -> None:
    me, pcie, busy = gpu.index, gpu.pcie, gpu.utilization
    numbers = {
        "CurrPcieLinkGeneration": pcie.generation,
        "MaxPcieLinkGeneration": pcie.generation_max,
        "GpuMaxPcieLinkGeneration": pcie.device_generation_max,
        "CurrPcieLinkWidth": pcie.width,
        "MaxPcieLinkWidth": pcie.width_max,
        "PcieReplayCounter": pcie.replays,
        "PerformanceState": gpu.clocks.performance_state,
    }
    for name, number in numbers.items():
        table.put(f"nvmlDeviceGet{name}", me, "I", number)
    table.put("nvmlDeviceGetUtilizationRates", me, "2I", busy.gpu_pct, busy.memory_pct)
    # not in the facts: assume an idle GPU
    idle = busy.gpu_pct if isinstance(busy.gpu_pct, Missing) else 0
    for name in ("Encoder", "Decoder"):
        table.put(f"nvmlDeviceGet{name}Utilization", me, "2I", idle, _SAMPLE_PERIOD_US)
    for counter in (0, 1):
        quiet = pcie.generation if isinstance(pcie.generation, Missing) else 0
        table.put("nvmlDeviceGetPcieThroughput", me, "I", quiet, args=(counter,))


def _add_health(table: NvmlTable, gpu: Gpu) -> None:
    me, ecc, repair = gpu.index, gpu.ecc, gpu.memory_repair
    table.put("nvmlDeviceGetEccMode", me, "2I", ecc.enabled, ecc.pending)
    totals = ((ecc.corrected_volatile, ecc.corrected_aggregate), (ecc.uncorrected_volatile, ecc.uncorrected_aggregate))
    for error, counters in enumerate(totals):
        for counter, count in enumerate(counters):
            table.put("nvmlDeviceGetTotalEccErrors", me, "Q", count, args=(error, counter))
    now, ever = ecc.sram_uncorrected_volatile, ecc.sram_uncorrected_aggregate
    for counter, count in enumerate((now, ever)):
        table.put("nvmlDeviceGetMemoryErrorCounter", me, "Q", count, args=(1, counter, 7))
    sram = (0, ever, 0, now, 0, 0, 0, 0, 0, 0, 0, ecc.sram_threshold_exceeded)
    table.put_versioned("nvmlDeviceGetSramEccErrorStatus", me, version_of(104, 1), "4x11QI4x", *sram)
    corrupted = gpu.inforom_corrupted
    if corrupted is True:
        table.refuse("nvmlDeviceValidateInforom", me, _CORRUPTED_INFOROM)
    else:
        table.put("nvmlDeviceValidateInforom", me, "", *([corrupted] if isinstance(corrupted, Missing) else []))
    banks = (repair.banks_max_spare, repair.banks_high_spare, repair.banks_partial_spare)
    table.put("nvmlDeviceGetRowRemapperHistogram", me, "5I", *banks, repair.banks_low_spare, repair.banks_no_spare)
    two = version_of(8, 1)
    pending = (repair.channel_repair_pending, repair.tpc_repair_pending)
    table.put_versioned("nvmlDeviceGetRepairStatus", me, version_of(12, 1), "2I", *pending)
    table.put_versioned("nvmlDeviceGetUnrepairableMemoryFlag_v1", me, two, "I", repair.unrepairable)
    thermal = gpu.thermal
    table.put("nvmlDeviceGetTemperature", me, "i", thermal.gpu_c, args=(0,))
    table.put_versioned("nvmlDeviceGetMarginTemperature", me, two, "i", thermal.margin_c)
    limits = (thermal.shutdown_c, thermal.slowdown_c, thermal.memory_max_c, thermal.max_operating_c)
    for kind, limit in enumerate(limits):
        table.put("nvmlDeviceGetTemperatureThreshold", me, "I", limit, args=(kind,))


def _add_clocks(table: NvmlTable, gpu: Gpu) -> None:
    clocks = gpu.clocks
    by_clock = {
        "ClockInfo": (clocks.graphics_mhz, clocks.sm_mhz, clocks.memory_mhz),
        "MaxClockInfo": (clocks.graphics_max_mhz, clocks.sm_max_mhz, clocks.memory_max_mhz),
        "ApplicationsClock": (clocks.application_graphics_mhz,) * 2 + (clocks.application_memory_mhz,),
        "DefaultApplicationsClock": (clocks.default_graphics_mhz,) * 2 + (clocks.default_memory_mhz,),
    }
    for name, values in by_clock.items():
        for clock, mhz in enumerate(values):
            table.put(f"nvmlDeviceGet{name}", gpu.index, "I", mhz, args=(clock,))
    reasons: Any = clocks.event_reasons
    if not isinstance(reasons, Missing):
        bits = {name: bit for bit, name in EVENT_REASONS.items()}
        reasons = sum(bits[reason] if reason in bits else _hexadecimal(reason) for reason in reasons)
    for name in ("Event", "Throttle"):
        table.put(f"nvmlDeviceGetCurrentClocks{name}Reasons", gpu.index, "Q", reasons)


def _add_power(table: NvmlTable, gpu: Gpu) -> None:
    power = gpu.power
    watts = {
        "PowerUsage": power.draw_w,
        "EnforcedPowerLimit": power.limit_w,
        "PowerManagementLimit": power.requested_limit_w,
        "PowerManagementDefaultLimit": power.default_limit_w,
    }
    for name, value in watts.items():
        table.put(f"nvmlDeviceGet{name}", gpu.index, "I", thousandths(value))
    low, high = thousandths(power.min_limit_w), thousandths(power.max_limit_w)
    table.put("nvmlDeviceGetPowerManagementLimitConstraints", gpu.index, "2I", low, high)


def _add_settings(table: NvmlTable, gpu: Gpu) -> None:
    me, settings = gpu.index, gpu.settings
    numbers = {
        "PersistenceMode": settings.persistence,
        "DisplayMode": settings.display_attached,
        "DisplayActive": settings.display_active,
        "ComputeMode": number_of(settings.compute_mode, codes.COMPUTE_MODES),
        "VirtualizationMode": number_of(settings.virtualization, codes.VIRTUALIZATION),
    }
    for name, number in numbers.items():
        table.put(f"nvmlDeviceGet{name}", me, "I", number)
    mode = number_of(settings.addressing_mode, codes.ADDRESSING)
    table.put_versioned("nvmlDeviceGetAddressingMode", me, version_of(8, 1), "I", mode)
    table.put("nvmlDeviceGetMigMode", me, "2I", settings.mig_enabled, settings.mig_pending)
    table.put("nvmlDeviceGetGpuInstanceId", me, "I", UNSUPPORTED)
    cpus = gpu.cpu_affinity
    near = None if isinstance(cpus, Missing) else parse_cpu_list(cpus)
    table.put("nvmlDeviceGetCpuAffinity", me, f"{_MASK_BYTES}s", cpus if isinstance(cpus, Missing) else _mask(near))
    memory = gpu.numa_node
    nodes = memory if isinstance(memory, Missing) else _mask(None if memory is None else frozenset({memory}))
    table.put("nvmlDeviceGetMemoryAffinity", me, f"{_MASK_BYTES}s", nodes)


def _mask(bits: frozenset[int] | None) -> bytes:
    places = (bit for bit in bits or () if 0 <= bit < _MASK_BYTES * 8)
    return sum(1 << bit for bit in places).to_bytes(_MASK_BYTES, "little")


def _add_processes(table: NvmlTable, gpu: Gpu) -> None:
    for name, kind in _KINDS.items():
        call = f"nvmlDeviceGet{name}RunningProcesses"
        if isinstance(gpu.processes, Missing):
            table.put(call, gpu.index, "", gpu.processes)
            continue
        held = [process for process in gpu.processes if kind in process.kind.split("+")]
        values = [value for process in held for value in _process(process)]
        table.put(call, gpu.index, "I4xQII" * len(held), *values)
    table.refuse("nvmlDeviceGetProcessUtilization", gpu.index, _NOT_FOUND)


def _process(process: GpuProcess) -> tuple[int, int, int, int]:
    used = UNKNOWN_BYTES if isinstance(process.memory_mib, Missing) else process.memory_mib << 20
    # no GPU or compute instance
    return process.pid, used, 0xFFFF_FFFF, 0xFFFF_FFFF
