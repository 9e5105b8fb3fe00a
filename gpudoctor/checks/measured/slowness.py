"""Why a GPU may be slower than its peers, according to facts and to telemetry under load."""

from __future__ import annotations

from collections.abc import Sequence

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.gpu_use import use_of_gpu
from gpudoctor.checks.measured.peer_ranks import others_of
from gpudoctor.checks.measured.ranks import rank_gpu
from gpudoctor.checks.measured.under_load import causes_under_load, load_of, median
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.telemetry import GpuUnderLoad

_SLOWING = {
    "hw-slowdown": "the hardware slows it down",
    "hw-thermal": "it is too hot and slowed down by hardware",
    "hw-power-brake": "the power supply brakes it",
    "sw-thermal": "it is too hot and slowed down by the driver",
}


def slowness_causes(case: Case, rank: int, group: Sequence[int], during: str) -> list[str]:
    """What facts and telemetry show that can make this rank's GPU slower than the rest of its group."""
    gpu = rank_gpu(case, rank)
    if gpu is None:
        return []
    peers = others_of(case, rank, group)
    loads = [load for peer in peers if (load := load_of(case, peer, during)) is not None]
    return causes(gpu, peers, load_of(case, gpu, during), loads)


def causes(
    gpu: Gpu,
    peers: Sequence[Gpu],
    under_load: GpuUnderLoad | None = None,
    peers_under_load: Sequence[GpuUnderLoad] = (),
) -> list[str]:
    """What a GPU's facts show that can make it slower than its peers, as text, the most certain first.

    Samples under load (see `load_of`) replace readings of the idle GPU where they exist. Peers of another model are
    ignored.
    """
    peers = [p for p in peers if known(p.name) == known(gpu.name)]
    loads = [load for load in peers_under_load if any(load.index == p.index for p in peers)]
    found: list[str] = []
    strangers = use_of_gpu(gpu).others
    if strangers:
        found.append(f"pid {', '.join(str(p.pid) for p in strangers[:3])} computes on it too")
    sampled: set[str] = set()
    if under_load is not None and under_load.samples:
        found += causes_under_load(gpu, peers, under_load, loads)
        sampled = {name for name in under_load.readings if any(name in load.readings for load in loads)}
    if under_load is None or not under_load.samples or "event_reasons" in under_load.unread:
        found += [text for bit, text in _SLOWING.items() if bit in (known(gpu.clocks.event_reasons) or ())]
    return found + _slower_readings(gpu, peers, sampled) + _other_numa_node(gpu, peers)


def _slower_readings(gpu: Gpu, peers: Sequence[Gpu], sampled: set[str]) -> list[str]:
    """Readings that are worse than the median of the peers', but those that were `sampled` under load."""
    found = []
    comparisons = (
        ("sm_mhz", "clock", "MHz", gpu.clocks.sm_mhz, [p.clocks.sm_mhz for p in peers], -0.05),
        ("", "maximum clock", "MHz", gpu.clocks.sm_max_mhz, [p.clocks.sm_max_mhz for p in peers], -0.02),
        ("", "power limit", "W", gpu.power.limit_w, [p.power.limit_w for p in peers], -0.02),
        ("pcie_width", "PCIe width", "lanes", gpu.pcie.width, [p.pcie.width for p in peers], -0.02),
    )
    for name, what, unit, value, others, margin in comparisons:
        own, usual = known(value), median(map(known, others))
        if name not in sampled and own is not None and usual and own < usual * (1 + margin):
            found.append(f"its {what} is {own:g} {unit}, the others have {usual:g}")
    hot, usual_c = known(gpu.thermal.gpu_c), median(known(p.thermal.gpu_c) for p in peers)
    if "temperature_c" not in sampled and hot is not None and usual_c is not None and hot >= usual_c + 10:
        found.append(f"it is at {hot} C, the others at {usual_c:g} C")
    return found


def _other_numa_node(gpu: Gpu, peers: Sequence[Gpu]) -> list[str]:
    nodes = {known(peer.numa_node) for peer in peers}
    if known(gpu.numa_node) is None or len(peers) < 2 or len(nodes) > 1 or not nodes.isdisjoint({None, gpu.numa_node}):
        return []
    return [f"it is on NUMA node {gpu.numa_node}, the others on {nodes.pop()}"]


def is_shared(gpu: Gpu) -> bool:
    """Whether another process computes on the GPU, so that its slowness is no evidence against it."""
    return bool(use_of_gpu(gpu).others)
