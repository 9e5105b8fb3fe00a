"""Whether the readings of a GPU can be trusted: refused, all-zero and stale ones do not make a healthy GPU."""

from __future__ import annotations

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.nvml.error_cost import LOST, RESET_REQUIRED, UNKNOWN, condemning

# of temperature, power, performance state and utilization in the nvidia-smi table
_MOST_ERR = 3
# worst first
_STATES = {LOST: "lost", RESET_REQUIRED: "waiting for a reset", UNKNOWN: "answering with driver errors"}


def untrusted(gpu: Gpu) -> str | None:
    """Why no reading of this GPU may be judged, as text for `unknown(...)`; None if they may.

    A GPU is untrusted after errors that condemn it as a whole (see `condemning`): its other readings may be stale
    or nonsense. So is one of which hardly anything was read, or with impossible readings: see `unreadable`.
    """
    errors = condemning(gpu)
    if not errors:
        return unreadable(gpu)
    order = list(_STATES)
    error = min(errors, key=lambda e: order.index(e.code) if e.code in order else len(order))
    words = _STATES.get(error.code, _STATES[UNKNOWN])
    return f"the GPU is {words} ({error.code}, {error.call}): its readings cannot be trusted"


def says_err(value: object) -> bool:
    """Whether the table cell holds ERR!: nvidia-smi's query failed with an error that it does not name."""
    return isinstance(value, Missing) and value.kind == "failed" and value.reason.endswith("says ERR!")


def unreadable(gpu: Gpu) -> str | None:
    """Why this GPU cannot be judged by its readings, as text for `unknown(...)`; None if it can.

    Either more of its main values were denied than read; or nvidia-smi shows ERR! for most values of its table; or
    temperature, power and clock are all 0, which is impossible for a running GPU.
    """
    values = _main_values(gpu)
    missing = [value for value in values if isinstance(value, Missing)]
    denied = [value for value in missing if value.kind == "denied"]
    if len(denied) > len(values) - len(missing):
        return f"{len(denied)} of its {len(values)} main values may not be read ({denied[0].reason})"
    refused = [value for value in missing if says_err(value)]
    if len(refused) >= _MOST_ERR:
        return f"nvidia-smi says ERR! for {len(refused)} of its main values: it could not read this GPU"
    if known(gpu.thermal.gpu_c) == 0 and known(gpu.power.draw_w) == 0 and known(gpu.clocks.sm_mhz) == 0:
        return "it answers 0 C, 0 W and 0 MHz at once: these are no readings"
    return None


def says_nothing(gpu: Gpu) -> bool:
    """Whether none of the GPU's main values was read, whatever the reason."""
    return all(isinstance(value, Missing) for value in _main_values(gpu))


def shown_by_driver(node: Node, gpu: Gpu) -> bool:
    """Whether the driver reported this GPU; otherwise it is known only from a list of the PCI bus."""
    values = (*_main_values(gpu), gpu.nvlinks, gpu.cpu_affinity)
    told = any(not isinstance(value, Missing) for value in values if value is not gpu.name)
    return told or bool(gpu.errors) or not isinstance(node.pairs, Missing)


def _main_values(gpu: Gpu) -> tuple[object, ...]:
    """Values that nearly every driver reports for every GPU."""
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
