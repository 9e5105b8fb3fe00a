"""Whether a GPU told enough, and what a GPU can tell: no permission or all zeros is no healthy GPU."""

from __future__ import annotations

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node


def unreadable(gpu: Gpu) -> str | None:
    """Why this GPU cannot be judged by what it told, in words for `unknown(...)`; None if it can.

    More of its main values were denied than told; or temperature, power and clock are 0 at once,
    which no GPU that runs can be.
    """
    values = _main_values(gpu)
    denied = [value for value in values if isinstance(value, Missing) and value.kind == "denied"]
    if len(denied) > sum(not isinstance(value, Missing) for value in values):
        return f"{len(denied)} of its {len(values)} main values may not be read ({denied[0].reason})"
    if known(gpu.thermal.gpu_c) == 0 and known(gpu.power.draw_w) == 0 and known(gpu.clocks.sm_mhz) == 0:
        return "it answers 0 C, 0 W and 0 MHz at once: these are no readings"
    return None


def says_nothing(gpu: Gpu) -> bool:
    """Whether not one of the GPU's main values was read, whatever the reason."""
    return all(isinstance(value, Missing) for value in _main_values(gpu))


def told_by_driver(node: Node, gpu: Gpu) -> bool:
    """Whether the driver told of this GPU; else a list of the PCI bus is all that it is known from."""
    values = (*_main_values(gpu), gpu.nvlinks, gpu.cpu_affinity)
    told = any(not isinstance(value, Missing) for value in values if value is not gpu.name)
    return told or bool(gpu.errors) or not isinstance(node.pairs, Missing)


def _main_values(gpu: Gpu) -> tuple[object, ...]:
    """What every driver tells of every GPU, or nearly so."""
    return (
        gpu.uuid,
        gpu.name,
        gpu.memory_total_mib,
        gpu.memory_used_mib,
        gpu.thermal.gpu_c,
        gpu.power.draw_w,
        gpu.clocks.sm_mhz,
        gpu.clocks.performance_state,
        gpu.utilization.gpu_pct,
    )
