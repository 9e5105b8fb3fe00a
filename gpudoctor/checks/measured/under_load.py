"""What telemetry under load shows of one GPU compared with its peers: causes of slowness, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Telemetry

# Clock event reasons that slow a GPU down; source: nvml.h. hw-slowdown is also set with either of _NARROWER
_SLOWING = {
    "hw-thermal": "HW thermal slowdown",
    "hw-power-brake": "HW power brake",
    "sw-thermal": "SW thermal slowdown",
    "hw-slowdown": "HW slowdown",
}
_NARROWER = ("hw-thermal", "hw-power-brake")
# Benign alone: every GPU at full load may show them. Suspect only if a single GPU does
_BENIGN = {
    "sw-power-cap": "SW power cap",
    "application-clocks": "application clocks setting",
    "sync-boost": "sync boost",
    "display-clocks": "display clock setting",
}
# A smaller difference to the peers cannot explain a rank that is 10 % slower: these reasons at most halve the clock
_LEAST_SHARE = 0.05
_ALONE_SHARE, _PEERS_SHARE = 0.5, 0.1
_HOTTER_C = 10
_IMPOSSIBLE_SHARE = 1.5  # timers are updated in steps: a little above 1 is possible
_LEAST_SAMPLES = 10


def telemetry_of(case: Case, during: str) -> Telemetry | None:
    """What was sampled while this probe ran (the last of several repetitions); None if nothing was."""
    return next((t for t in reversed(case.measurements.telemetry) if t.during == during), None)


def load_of(case: Case, gpu: Gpu, during: str) -> GpuUnderLoad | None:
    """What was sampled of one GPU while this probe ran; None if nothing was."""
    telemetry = telemetry_of(case, during)
    return next((load for load in (telemetry.gpus if telemetry else ()) if load.samples and is_of(load, gpu)), None)


def is_of(load: GpuUnderLoad, gpu: Gpu) -> bool:
    """Whether these samples are of this GPU: by UUID, by index if one of the two has none."""
    return gpu.uuid == load.uuid if load.uuid and known(gpu.uuid) else gpu.index == load.index


def causes_under_load(gpu: Gpu, peers: Sequence[Gpu], own: GpuUnderLoad, others: Sequence[GpuUnderLoad]) -> list[str]:
    """What slowed this GPU but not its peers while all were under load; the most certain cause first.

    `gpu` and `peers` supply the power limits, `own` and `others` the samples.
    """
    found = [*_slowdowns(own, others), *_lone_settings(gpu, peers, own, others)]
    for name, what, unit in (("sm_mhz", "clock", "MHz"), ("memory_mhz", "memory clock", "MHz")):
        value, usual = median_of(own, name), median(median_of(other, name) for other in others)
        if value is not None and usual and value < usual * 0.95:
            found.append(f"its {what} was {value:.0f} {unit} under load, the others' {usual:.0f} {unit}")
    hot, usual_c = median_of(own, "temperature_c"), median(median_of(other, "temperature_c") for other in others)
    if hot is not None and usual_c is not None and hot >= usual_c + _HOTTER_C:
        found.append(f"it was at {hot:.0f} C under load, the others at {usual_c:.0f} C")
    for name, what in (("pcie_generation", "PCIe generation"), ("pcie_width", "PCIe width")):
        # the highest value: between two copies the link may idle at less
        best, usual = highest_of(own, name), median(highest_of(other, name) for other in others)
        if best is not None and usual and best < usual:
            found.append(f"its {what} under load was {best:.0f}, the others' {usual:.0f}")
    return found


def _slowdowns(own: GpuUnderLoad, others: Sequence[GpuUnderLoad]) -> list[str]:
    """Slowdowns active for clearly more of the time than on the others, as text."""
    shares = {reason: event_share(own, reason) for reason in _SLOWING}
    if any(shares[reason] >= shares["hw-slowdown"] / 2 for reason in _NARROWER if shares[reason] > 0):
        shares["hw-slowdown"] = 0.0
    found = []
    for reason, text in _SLOWING.items():
        usual = median(event_share(other, reason) for other in others) or 0.0
        if shares[reason] - usual >= _LEAST_SHARE:
            beside = f" (the others {percent(usual)})" if usual else ""
            found.append(f"{text} active {percent(shares[reason])} of the time{beside}")
    return found


def _lone_settings(gpu: Gpu, peers: Sequence[Gpu], own: GpuUnderLoad, others: Sequence[GpuUnderLoad]) -> list[str]:
    """Benign reasons that only this GPU shows; a power cap counts from a smaller share if its limit is lower."""
    if not others:
        return []
    limit_w, usual_w = known(gpu.power.limit_w), median(known(p.power.limit_w) for p in peers)
    lower = limit_w is not None and usual_w is not None and limit_w < usual_w * 0.98
    found = []
    for reason, text in _BENIGN.items():
        share, usual = event_share(own, reason), [event_share(other, reason) for other in others]
        if reason == "sw-power-cap" and lower and share >= (median(usual) or 0.0) + _LEAST_SHARE:
            found.append(f"{text} active {percent(share)} of the time")  # the finding shows the limits too
        elif share >= _ALONE_SHARE and max(usual) <= _PEERS_SHARE:
            found.append(f"{text} active {percent(share)} of the time, on this GPU only")
    return found


def event_share(gpu: GpuUnderLoad, reason: str) -> float:
    """Share of the time with this clock event reason: from the samples, or from the driver's timer if that is more.

    A timer that ran much longer than the time itself counts something else: its field ids were renumbered before.
    """
    by_timer = gpu.event_ms.get(reason, 0.0) / (gpu.sampled_s * 1000) if gpu.sampled_s > 0 else 0.0
    by_timer = by_timer if by_timer < _IMPOSSIBLE_SHARE else 0.0
    return min(1.0, max(gpu.event_share.get(reason, 0.0), by_timer))


def percent(share: float) -> str:
    """Format with two digits; only exact values print as 100 % or 0 %.

    >>> percent(0.917), percent(0.997), percent(1.0), percent(0.004)
    ('92 %', '99 %', '100 %', '0.4 %')
    """
    if 0 < share < 0.01:
        return f"{share * 100:.1g} %"
    return f"{min(share * 100, 99.0) if share < 1 else 100.0:.0f} %"


def median_of(gpu: GpuUnderLoad, name: str) -> float | None:
    """The median of one reading; None if it was not read."""
    spread = gpu.readings.get(name)
    return spread.median if spread else None


def highest_of(gpu: GpuUnderLoad, name: str) -> float | None:
    """The maximum of one reading; None if it was not read."""
    spread = gpu.readings.get(name)
    return spread.high if spread else None


def median(values: Iterable[float | None]) -> float | None:
    """The median of the known values; None if there are none.

    Replaces `statistics.median`, whose import costs 5 % of the time of a quick check.
    """
    reported = sorted(value for value in values if value is not None)
    if not reported:
        return None
    half = len(reported) // 2
    return reported[half] if len(reported) % 2 else (reported[half - 1] + reported[half]) / 2


# Slowdowns and memory errors under load on a GPU that showed none before.


class Slowed(msgspec.Struct, frozen=True):
    """The clock event reason with the largest share of a probe's time, and the probe."""

    reason: str
    share: float
    during: str


def slowed_under_load(case: Case, gpu: Gpu, reasons: tuple[str, ...]) -> Slowed | None:
    """The worst of these reasons in any probe, by share of the probe's time; None if none was set."""
    found = [
        Slowed(reason, share, during)
        for during, load in _loads(case, gpu)
        if load.samples >= _LEAST_SAMPLES
        for reason in reasons
        if (share := event_share(load, reason)) > 0
    ]
    # on a tie the narrower reason wins: hw-slowdown is set with it and is less specific
    return max(found, key=lambda slowed: (slowed.share, slowed.reason != "hw-slowdown"), default=None)


def grown_under_load(case: Case, gpu: Gpu, counter: str) -> tuple[int, str] | None:
    """By how much a counter grew, and during which probe; None if it did not grow or was not read.

    Returns the largest figure, not the sum: neighbouring probes may both count what happened between them.
    """
    found = [(load.counters.get(counter, 0), during) for during, load in _loads(case, gpu)]
    most = max(found, default=(0, ""))
    return most if most[0] > 0 else None


def _loads(case: Case, gpu: Gpu) -> Iterator[tuple[str, GpuUnderLoad]]:
    for telemetry in case.measurements.telemetry:
        for load in telemetry.gpus:
            if is_of(load, gpu):
                yield telemetry.during, load
