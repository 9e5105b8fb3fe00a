"""Which errors of the driver make all readings of a GPU unreliable."""

from __future__ import annotations

from gpudoctor.facts.model.gpu import CallError, Gpu
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.nvml.codes import CORE_QUESTIONS, UNKNOWN, core_question, cost_of


def condemning(gpu: Gpu) -> tuple[CallError, ...]:
    """The errors that make all readings of this GPU unreliable; none if its readings are valid.

    999 condemns a GPU only if it is the answer to all core queries: name, memory, clocks, temperature
    and utilisation.
    """
    grave = tuple(error for error in gpu.errors if cost_of(error.code, error.call) == "gpu")
    if grave or not gpu.errors:
        return grave
    unknown = tuple(error for error in gpu.errors if error.code == UNKNOWN)
    asked = {core_question(error.call) for error in unknown}
    core = (
        *(gpu.name, gpu.memory_total_mib, gpu.memory_used_mib),
        *(gpu.clocks.graphics_mhz, gpu.clocks.sm_mhz, gpu.clocks.memory_mhz),
        *(gpu.thermal.gpu_c, gpu.utilization.gpu_pct, gpu.utilization.memory_pct),
    )
    silent = all(isinstance(value, Missing) for value in core)
    return unknown if asked >= CORE_QUESTIONS and silent else ()
