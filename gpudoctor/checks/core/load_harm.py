"""What harm the load brought to light on a GPU that looked well before: slowdowns and memory errors."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.under_load import event_share
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.telemetry import GpuUnderLoad

_LEAST_SAMPLES = 10


class Slowed(msgspec.Struct, frozen=True):
    """The clock event reason that was set for the largest share of a probe, and which probe that was."""

    reason: str
    share: float
    during: str


def slowed_under_load(case: Case, gpu: Gpu, reasons: tuple[str, ...]) -> Slowed | None:
    """The worst of these reasons in any probe, by the share of its time; None if none was set."""
    found = [
        Slowed(reason, share, during)
        for during, load in _loads(case, gpu)
        if load.samples >= _LEAST_SAMPLES
        for reason in reasons
        if (share := event_share(load, reason)) > 0
    ]
    # hw-slowdown is set with the narrower ones, which say why
    return max(found, key=lambda slowed: (slowed.share, slowed.reason != "hw-slowdown"), default=None)


def grown_under_load(case: Case, gpu: Gpu, counter: str) -> tuple[int, str] | None:
    """By how much a counter grew, and during which probe; None if it did not, or was not read.

    Of neighbouring probes both may count what lay between them: the largest figure is told, not the sum.
    """
    found = [(load.counters.get(counter, 0), during) for during, load in _loads(case, gpu)]
    most = max(found, default=(0, ""))
    return most if most[0] > 0 else None


def _loads(case: Case, gpu: Gpu) -> Iterator[tuple[str, GpuUnderLoad]]:
    for telemetry in case.measurements.telemetry:
        for load in telemetry.gpus:
            if gpu.uuid == load.uuid if load.uuid and known(gpu.uuid) else gpu.index == load.index:
                yield telemetry.during, load
