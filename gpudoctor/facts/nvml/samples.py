"""The samples that the sampler takes of each GPU, and their summary over a period."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Unanswered
from gpudoctor.facts.model.telemetry import GpuUnderLoad, Spread, Telemetry
from gpudoctor.text.grouped import grouped

READINGS = (
    *("utilization_pct", "sm_mhz", "memory_mhz", "power_w", "temperature_c", "memory_used_mib"),
    *("pcie_generation", "pcie_width"),
)
COUNTERS = ("pcie_replays", "ecc_corrected", "ecc_uncorrected")
EVENTS = "event_reasons"
# everything that a sample can hold, and so everything that can be missing from a summary
NAMES = (*READINGS, EVENTS, *COUNTERS)


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU at `at_s` (CLOCK_MONOTONIC).

    `events`: the clock event reasons that were set; None if they were not read.
    `timers_ms`: the driver's timers for them since it was loaded. `counters`: since the driver was
    loaded. `unread`: why a reading is missing; one that is unsupported or denied is listed once,
    and not read again.
    """

    at_s: float
    gpu: int
    readings: dict[str, float] = {}
    events: tuple[str, ...] | None = None
    timers_ms: dict[str, float] = {}
    counters: dict[str, int] = {}
    unread: dict[str, Missing] = {}


class SamplerLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the sampler: a sample, or why there will be none, or the end."""

    sample: Sample | None = None
    failure: str | None = None
    end: bool = False


class SampleRecording:
    """The samples of one run.

    `failure` is why there are not more, None if sampling went on to the end; `unanswered`
    are the driver calls that never returned.
    """

    def __init__(
        self,
        gpus: Sequence[tuple[int, str]],
        samples: Iterable[Sample],
        failure: str | None = None,
        unanswered: tuple[Unanswered, ...] = (),
    ) -> None:
        self.failure = failure
        self.unanswered = unanswered
        self._uuids = dict(gpus)
        self._samples: dict[int, list[Sample]] = {index: [] for index, _ in gpus}
        for sample in samples:
            self._samples[sample.gpu].append(sample)

    def telemetry(self, during: str, begin_s: float, end_s: float) -> Telemetry:
        """Summary of the samples from `begin_s` to `end_s` (CLOCK_MONOTONIC) under the probe's name."""
        last_s = max((samples[-1].at_s for samples in self._samples.values() if samples), default=begin_s)
        ended = self.failure if last_s < end_s else None
        return Telemetry(during, round(end_s - begin_s, 3), self.between(begin_s, end_s), ended)

    def between(self, begin_s: float, end_s: float) -> tuple[GpuUnderLoad, ...]:
        """Summary of every GPU over a time window; GPUs that were not sampled in it have 0 samples."""
        return tuple(self._summary(index, begin_s, end_s) for index in self._samples)

    def series(self, gpu: int, name: str) -> list[tuple[float, float]]:
        """(CLOCK_MONOTONIC, value) of one reading of one GPU (NVML index), in chronological order."""
        return [(sample.at_s, sample.readings[name]) for sample in self._samples[gpu] if name in sample.readings]

    def _summary(self, index: int, begin_s: float, end_s: float) -> GpuUnderLoad:
        samples = [sample for sample in self._samples[index] if begin_s <= sample.at_s <= end_s]
        readings = grouped(reading for sample in samples for reading in sample.readings.items())
        reported = [sample.events for sample in samples if sample.events is not None]
        reasons = dict.fromkeys(reason for events in reported for reason in events)
        counters = _growth(self._samples[index], begin_s, end_s)
        seen = {*readings, *counters, *((EVENTS,) if reported else ())}
        taken = [sample for sample in samples if sample.readings or sample.events is not None]
        return GpuUnderLoad(
            index=index,
            uuid=self._uuids[index],
            samples=len(taken),
            readings={name: _spread(readings[name]) for name in READINGS if name in readings},
            unread=self._unread(index, seen, begin_s, end_s),
            event_share={r: round(sum(r in events for events in reported) / len(reported), 4) for r in reasons},
            event_ms=_time_in(samples),
            counters=counters,
            sampled_s=round(taken[-1].at_s - taken[0].at_s, 3) if taken else 0.0,
        )

    def _unread(self, index: int, seen: set[str], begin_s: float, end_s: float) -> dict[str, Missing]:
        """Why something was not read, or was no longer available at the end of the window."""
        unread: dict[str, Missing] = {}
        for sample in self._samples[index]:
            if sample.at_s > end_s:
                break
            for name in (*sample.readings, *sample.counters, *((EVENTS,) if sample.events is not None else ())):
                unread.pop(name, None)
            unread |= {n: m for n, m in sample.unread.items() if m.kind != "failed" or sample.at_s >= begin_s}
        why = Missing("not sampled while it ran") if self.failure is None else Missing(self.failure, "failed")
        return {name: unread.get(name, why) for name in NAMES if name in unread or name not in seen}


def _growth(samples: Sequence[Sample], begin_s: float, end_s: float) -> dict[str, int]:
    """Counter deltas, from the last reading before the window to the first one after it."""
    grown = {}
    for name in COUNTERS:
        reported = [(sample.at_s, sample.counters[name]) for sample in samples if name in sample.counters]
        if len(reported) < 2 or reported[-1][0] < begin_s or reported[0][0] > end_s:
            continue
        before = [count for at_s, count in reported if at_s <= begin_s] or [reported[0][1]]
        after = [count for at_s, count in reported if at_s >= end_s] or [reported[-1][1]]
        # a counter that went back was reset: its value was counted after that
        grown[name] = after[0] - before[-1] if after[0] >= before[-1] else after[0]
    return grown


def _time_in(samples: Sequence[Sample]) -> dict[str, float]:
    """Growth of the driver's timers between their first and last readings."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for sample in samples:
        for name, ms in sample.timers_ms.items():
            first.setdefault(name, ms)
            last[name] = ms
    return {name: round(last[name] - first[name], 3) for name in first if last[name] > first[name]}


def _spread(values: Sequence[float]) -> Spread:
    return Spread(min(values), median(values), max(values))
