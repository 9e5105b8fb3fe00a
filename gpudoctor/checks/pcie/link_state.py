"""What the PCIe checks share: the slot and bridges above a GPU, whether its link is idle, and its rates."""

from __future__ import annotations

from collections.abc import Sequence

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.each_gpu import passed_through
from gpudoctor.checks.core.finding import Finding, skip
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.facts.model.gpu import Gpu, PcieHop
from gpudoctor.facts.model.links import link_gb_s
from gpudoctor.facts.model.missing import Missing, known

# a sentence for each of 1,000 GPUs must not name the other 999
_MOST_NAMED = 16


def describe(generation: int | None, lanes: int) -> str:
    """Text for a link: "PCIe Gen4 x8"."""
    return f"PCIe Gen{generation} x{lanes}" if generation else f"PCIe x{lanes}"


def visible_slot(case: Case, gpu: Gpu) -> PcieHop | None:
    """The bridge port directly above the GPU, whose width is the slot's; None if it is not the real one."""
    path = known(gpu.pcie.path)
    return path[1] if path and hidden_bridges(case, gpu) is None else None


def hidden_bridges(case: Case, gpu: Gpu) -> str | None:
    """Why the visible bridges above the GPU are no evidence, as text; None if they are the real ones."""
    if passed_through(gpu):
        return "the GPU is passed into a virtual machine: its bridges are not the real ones"
    if case.node.host.is_guest:
        return "in a virtual machine the bridges are not the real ones"
    if isinstance(gpu.pcie.path, Missing):
        return f"the bridges above it: {gpu.pcie.path.reason}"
    if len(gpu.pcie.path) < 2:
        return "no bridge above it is visible"
    return None


def bridges_not_judged(case: Case, gpu: Gpu) -> Finding | None:
    """A finding with the reason if the GPU's bridges cannot be judged; None if they can."""
    reason, path = hidden_bridges(case, gpu), gpu.pcie.path
    if reason is None:
        return None
    return unread(of_gpu(gpu), "bridges", path) if isinstance(path, Missing) else skip(of_gpu(gpu), reason)


def rates_gb_s(now: tuple[int | None, int], full: tuple[int | None, int]) -> tuple[float, float] | None:
    """Line rates in one direction at two pairs of generation and lanes; None if either is not known."""
    has, could = (link_gb_s(generation, lanes) for generation, lanes in (now, full))
    return None if has is None or could is None else (has, could)


def idling(gpu: Gpu, busy_percent: float) -> bool | None:
    """Whether the link may be slowed down because nothing uses it; None if that is not known.

    NVIDIA lowers the generation outside P0 to P2 (`nvidia-smi --help-query-gpu`, pcie.link.gen.current); a
    desktop's redraws below `busy_percent` do not count as use.
    """
    state = known(gpu.clocks.performance_state)
    if state is not None and state > 2:
        return True
    busy = known(gpu.utilization.gpu_pct)
    if busy is not None:
        return busy < busy_percent
    reasons = known(gpu.clocks.event_reasons)
    return None if reasons is None else "idle" in reasons or state is None


def names_of(gpus: Sequence[Gpu]) -> str:
    """The GPUs for use in a sentence, of many the first ones.

    >>> names_of([Gpu(3, "")]), names_of([Gpu(index, "") for index in range(3)])
    ('GPU 3', 'GPUs 0, 1 and 2')
    >>> names_of([Gpu(index, "") for index in range(1000)])
    'GPUs 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 984 others'
    """
    numbers = [str(gpu.index) for gpu in gpus[:_MOST_NAMED]]
    if len(numbers) == 1:
        return f"GPU {numbers[0]}"
    if len(gpus) > len(numbers):
        return f"GPUs {', '.join(numbers)} and {len(gpus) - len(numbers)} other{'s' * (len(gpus) - len(numbers) > 1)}"
    return f"GPUs {', '.join(numbers[:-1])} and {numbers[-1]}"
