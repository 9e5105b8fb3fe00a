"""What grew between two readings of one node: pure functions, no verdicts."""

from __future__ import annotations

from collections import Counter

from gpudoctor.facts.kernel_log.records import read_line
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measured_burn import GpuCounters
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import KernelEvent, KernelLog, Node
from gpudoctor.facts.nvml.error_cost import condemning

_GONE = Missing("the driver did not show this GPU any more after the load", "failed")


def counter_growth(before: Node, after: Node) -> tuple[GpuCounters, ...]:
    """By how much each GPU's counters grew, for all GPUs of the first reading."""
    again = {gpu.bus_id: gpu for gpu in after.gpus}
    return tuple(_of_gpu(gpu, again.get(gpu.bus_id)) for gpu in before.gpus)


def _of_gpu(before: Gpu, after: Gpu | None) -> GpuCounters:
    if after is not None and known(after.uuid) not in (None, known(before.uuid)):
        after = None
    growth: dict[str, int] = {}
    unread: dict[str, Missing] = {}
    now = _counters(after) if after is not None else {}
    for name, first in _counters(before).items():
        second = now.get(name, _GONE)
        if isinstance(first, Missing) or isinstance(second, Missing):
            reasons = [m for m in (second, first) if isinstance(m, Missing)]
            unread[name] = next((m for m in reasons if m.kind == "failed"), reasons[0])
        elif second < first:
            unread[name] = Missing(f"went back from {first} to {second}: was the GPU reset?", "failed")
        else:
            growth[name] = second - first
    errors = condemning(after) if after is not None else ()
    return GpuCounters(before.index, known(before.uuid), before.bus_id, growth, unread, errors)


def _counters(gpu: Gpu) -> dict[str, int | Missing]:
    return {
        "pcie_replays": gpu.pcie.replays,
        "ecc_corrected": gpu.ecc.corrected_volatile,
        "ecc_uncorrected": gpu.ecc.uncorrected_volatile,
    }


def new_events(before: KernelLog, after: KernelLog, read_s: float | None = None) -> tuple[KernelEvent, ...] | Missing:
    """What the kernel logged between two readings; Missing where they do not compare.

    `read_s`: seconds since boot at the first reading. Lines that came later and are gone make the answer Missing.
    """
    if isinstance(after.events, Missing):
        return after.events
    if isinstance(before.events, Missing):
        return before.events
    if after.truncated and after.starts_s is not None and read_s is not None and after.starts_s > read_s:
        return Missing("the kernel's ring buffer was overwritten during the load", "failed")
    if before.source != after.source and not _all_timed(before.events, after.events):
        return Missing("read from another place after the load", "failed")
    told = Counter(_identity(event) for event in before.events)
    fresh = []
    for event in after.events:
        told[_identity(event)] -= 1
        if told[_identity(event)] < 0:
            fresh.append(event)
    return tuple(fresh)


def _all_timed(*logs: tuple[KernelEvent, ...]) -> bool:
    return all(event.time_s is not None for events in logs for event in events)


def _identity(event: KernelEvent) -> tuple[float | None, str]:
    """The kernel's stamp and its message: the same line bears other prefixes in the journal."""
    if event.time_s is None:
        return None, event.text
    return round(event.time_s, 6), read_line(event.text).message
