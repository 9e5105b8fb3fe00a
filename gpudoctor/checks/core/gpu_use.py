"""Who uses a GPU: one rule for every caller, from its processes and the readings of one moment."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudoctor.facts.model.gpu import Gpu, GpuProcess, system_program
from gpudoctor.facts.model.missing import NOT_READ, Missing, known

UNSEEN_MIB = 2000  # an idle GPU shows at most the driver's own reserve, up to 1.5 GB with old drivers
# Utilization alone is no use. It reads up to 100 % while the driver initialises a GPU with ECC (nvml.h on
# nvmlDeviceGetUtilizationRates), and stays there after a process died in a kernel (Blackwell, drivers 580.95 to
# 595.71). With it somebody works there if it holds a CUDA context (250 to 500 MiB), or if the GPU draws power.
BUSY_PCT = 20
_CONTEXT_MIB = 200
_WORKING_POWER_SHARE = 0.5  # of the limit; idle GPUs draw 5 to 25 %, a T4 in P0 40 %


class UseReadings(msgspec.Struct, frozen=True):
    """Readings that show whether a GPU works for somebody; None: not known.

    `reserve_counted`: the memory in use includes the driver's own reserve.
    """

    used_mib: float | None = None
    busy_pct: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    reserve_counted: bool = True

    @property
    def draws_power(self) -> bool:
        watts, limit_w = self.power_w, self.power_limit_w
        return bool(watts and limit_w and watts >= _WORKING_POWER_SHARE * limit_w)


class GpuUse(msgspec.Struct, frozen=True):
    """How other programs use one GPU.

    `others`: processes that compute there, without gpudoctor's own and the harmless ones. `unlisted_mib`: memory
    in use that no listed process holds; None if that is not known. `unseen`: a text if there may be work without
    a listed process (signs of it, or nothing that rules it out); None otherwise.
    """

    others: tuple[GpuProcess, ...]
    unlisted_mib: int | None
    unseen: str | None


def use_of_gpu(gpu: Gpu) -> GpuUse:
    """The use of one GPU according to its facts."""
    return use_of(gpu.processes, readings_of(gpu))


def readings_of(gpu: Gpu) -> UseReadings:
    """The readings in a GPU's facts."""
    return UseReadings(
        known(gpu.memory_used_mib),
        known(gpu.utilization.gpu_pct),
        known(gpu.power.draw_w),
        known(gpu.power.limit_w),
        reserve_counted=isinstance(gpu.memory_reserved_mib, Missing),
    )


def use_of(processes: Sequence[GpuProcess] | Missing, readings: UseReadings) -> GpuUse:
    """The use of a GPU, from its process list and readings of one moment."""
    listed = () if isinstance(processes, Missing) else processes
    others = tuple(process for process in listed if not process.is_own and not harmless(process.kind, process.name))
    held_mib = sum(known(process.memory_mib) or 0 for process in listed)
    unlisted_mib = None if readings.used_mib is None else max(0, round(readings.used_mib - held_mib))
    unseen = None
    if isinstance(processes, Missing) and (processes.kind == "failed" or processes == NOT_READ):
        unseen = f"who uses it is not known: {processes.reason}"
    elif isinstance(processes, Missing) and unlisted_mib is None:
        unseen = "who uses it is not known: neither its processes nor its memory in use can be read"
    elif not others and _unlisted_work(unlisted_mib or 0, readings):
        names = ", ".join(dict.fromkeys(known(process.name) or "a process" for process in listed))
        who = f"beside {names}" if names else "by a process that is not seen here"
        unseen = f"{readings.busy_pct or 0:.0f} % busy, {unlisted_mib or 0} MiB in use {who}"
    return GpuUse(others, unlisted_mib, unseen)


def _unlisted_work(unlisted_mib: int, readings: UseReadings) -> bool:
    """Whether somebody who is not listed works on the GPU."""
    if unlisted_mib > UNSEEN_MIB:
        return True
    has_context = unlisted_mib > _CONTEXT_MIB and not readings.reserve_counted
    return (readings.busy_pct or 0) > BUSY_PCT and (has_context or readings.draws_power)


def harmless(kind: str, name: str | Missing | None) -> bool:
    """Whether a process of this kind and name is harmless; one without a known name is not.

    Harmless are programs that only draw (kind G), desktops that also compute a little (C+G), the MPS server, which
    shares the GPU out but computes nothing itself, and monitoring. Clients of the MPS server are listed separately.
    """
    return kind == "G" or (isinstance(name, str) and system_program(name) is not None)
