"""ECC, row remapping, page retirement and infoROM, read from NVML."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import Any

from gpudoctor.facts.model.gpu import Ecc, GpuProcess, MemoryRepair
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, fill, if_known
from gpudoctor.facts.nvml.client import MAX_COUNT, DriverError, Fields, NvmlClient, in_range, prefer

# NVML field ids (nvml.h), read with nvmlDeviceGetFieldValues
_ECC_MODE, _ECC_MODE_PENDING = 1, 2
_CORRECTED_VOLATILE, _UNCORRECTED_VOLATILE, _CORRECTED_AGGREGATE, _UNCORRECTED_AGGREGATE = 3, 4, 5, 6
_RETIRED_SINGLE_BIT, _RETIRED_DOUBLE_BIT, _RETIREMENT_PENDING = 29, 30, 31
_REMAPPED_CORRECTED, _REMAPPED_UNCORRECTED, _REMAP_PENDING, _REMAP_FAILED = 142, 143, 144, 145
MEMORY_HEALTH_FIELDS = (
    _ECC_MODE, _ECC_MODE_PENDING,
    _CORRECTED_VOLATILE, _UNCORRECTED_VOLATILE, _CORRECTED_AGGREGATE, _UNCORRECTED_AGGREGATE,
    _RETIRED_SINGLE_BIT, _RETIRED_DOUBLE_BIT, _RETIREMENT_PENDING,
    _REMAPPED_CORRECTED, _REMAPPED_UNCORRECTED, _REMAP_PENDING, _REMAP_FAILED,
)  # fmt: skip
# arguments of nvmlDeviceGetTotalEccErrors and nvmlDeviceGetMemoryErrorCounter
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1
_SRAM = 7
_CORRUPTED_INFOROM = 14  # nvmlReturn_t, nvml.h


def read_ecc(client: NvmlClient, fields: Fields) -> Ecc:
    """Mode and totals from field values, else from their getters; no more calls if ECC is unsupported."""
    enabled = flag(fields[_ECC_MODE, 0], "ECC mode")
    pending = flag(fields[_ECC_MODE_PENDING, 0], "pending ECC mode")
    if isinstance(enabled, Missing):
        mode = client.ask("nvmlDeviceGetEccMode")
        now, later = (mode, mode) if isinstance(mode, Missing) else mode
        enabled, pending = prefer(enabled, flag(now, "ECC mode")), prefer(pending, flag(later, "pending ECC mode"))
    if isinstance(enabled, Missing) and enabled.kind == "unsupported":
        return fill(Ecc(), UNSUPPORTED)

    def total(field: int, error: int, counter: int) -> int | Missing:
        count = in_range(fields[field, 0], 0, MAX_COUNT, f"ECC count (field {field})")
        if isinstance(count, Missing) and enabled is True:
            count = prefer(count, client.number(0, MAX_COUNT, "nvmlDeviceGetTotalEccErrors", error, counter))
        return count

    return Ecc(
        enabled,
        pending,
        total(_CORRECTED_VOLATILE, _CORRECTED, _VOLATILE),
        total(_UNCORRECTED_VOLATILE, _UNCORRECTED, _VOLATILE),
        total(_CORRECTED_AGGREGATE, _CORRECTED, _AGGREGATE),
        total(_UNCORRECTED_AGGREGATE, _UNCORRECTED, _AGGREGATE),
        *_sram(client),
    )


def _sram(client: NvmlClient) -> tuple[Any, Any, Any]:
    """Uncorrected SRAM errors (volatile, aggregate) and whether their threshold is exceeded (driver 550 and newer)."""
    call = "nvmlDeviceGetSramEccErrorStatus"
    made = getattr(client.nvml, "c_nvmlEccSramErrorStatus_v1_t", None)
    answer: Any = UNSUPPORTED
    if made is not None:
        status = made()
        answer = client.ask(call, byref(status))
        if not isinstance(answer, Missing):
            return (
                in_range(status.volatileUncParity + status.volatileUncSecDed, 0, MAX_COUNT, call),
                in_range(status.aggregateUncParity + status.aggregateUncSecDed, 0, MAX_COUNT, call),
                flag(status.bThresholdExceeded, "SRAM threshold"),
            )
    if answer.kind != "unsupported":
        return (answer, answer, answer)
    counter = "nvmlDeviceGetMemoryErrorCounter"
    return (
        client.number(0, MAX_COUNT, counter, _UNCORRECTED, _VOLATILE, _SRAM),
        client.number(0, MAX_COUNT, counter, _UNCORRECTED, _AGGREGATE, _SRAM),
        UNSUPPORTED,
    )


def read_memory_repair(client: NvmlClient, fields: Fields) -> MemoryRepair:
    """Row remapping and page retirement. Histogram, repair status and unrepairable flag cost a call each."""

    def count(field: int) -> int | Missing:
        return in_range(fields[field, 0], 0, 1 << 31, f"field {field}")

    remapped = count(_REMAPPED_CORRECTED)
    histogram = repair = unrepairable = UNSUPPORTED
    # GPUs without row remapping retire pages, and have none of the rest
    if not isinstance(remapped, Missing) or remapped.kind != "unsupported":
        histogram = client.ask("nvmlDeviceGetRowRemapperHistogram")
        repair = client.ask("nvmlDeviceGetRepairStatus")
        unrepairable = client.ask("nvmlDeviceGetUnrepairableMemoryFlag_v1")

    def banks(name: str) -> int | Missing:
        return if_known(histogram, lambda read: int(getattr(read, name)))

    channel, tpc = (repair, repair) if isinstance(repair, Missing) else repair
    return MemoryRepair(
        remapped_corrected=remapped,
        remapped_uncorrected=count(_REMAPPED_UNCORRECTED),
        remap_pending=flag(fields[_REMAP_PENDING, 0], "row remap pending"),
        remap_failed=flag(fields[_REMAP_FAILED, 0], "row remap failure"),
        banks_max_spare=banks("max"),
        banks_high_spare=banks("high"),
        banks_partial_spare=banks("partial"),
        banks_low_spare=banks("low"),
        banks_no_spare=banks("none"),
        retired_single_bit=count(_RETIRED_SINGLE_BIT),
        retired_double_bit=count(_RETIRED_DOUBLE_BIT),
        retirement_pending=flag(fields[_RETIREMENT_PENDING, 0], "page retirement pending"),
        channel_repair_pending=flag(channel, "channel repair pending"),
        tpc_repair_pending=flag(tpc, "TPC repair pending"),
        unrepairable=flag(unrepairable, "unrepairable memory"),
    )


def read_inforom(client: NvmlClient, processes: Sequence[GpuProcess] | Missing) -> bool | Missing:
    """Whether the infoROM is corrupted: the driver reads it, and returns 14 if its checksum is wrong.

    Not asked beside a job: it reads the board's flash, which DCGM does at most every 30 s, and hourly in its watches.
    """
    if not isinstance(processes, Missing) and any(not p.is_own and p.kind != "G" for p in processes):
        text = "not asked while a process uses the GPU, since the driver would read the board's flash"
        return Missing(text, "not_asked")
    try:
        client.call("nvmlDeviceValidateInforom", client.handle)
    except DriverError as error:
        if error.code == _CORRUPTED_INFOROM:
            return True
        client.note(error)
        return error.missing
    return False


def flag(value: Any, what: str) -> bool | Missing:
    """NVML's 0 or 1 as a bool; any other number is `failed`."""
    return if_known(in_range(value, 0, 1, what), bool)
