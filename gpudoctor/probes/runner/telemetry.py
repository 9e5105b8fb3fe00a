"""Telemetry during the probes: starts the sampler and assigns its samples to probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import msgspec

from gpudoctor.facts.model.measurements import PROBES, Measurements, Probe
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.nvml.sampler import Sampler, interval_for
from gpudoctor.probes.runner import messages
from gpudoctor.probes.runner.plan import ProbePlan

WHOLE = "burn"  # name of the window that spans all repetitions
_HURRY_S = 0.3
Span = tuple[float, float]


class Windows:
    """When each probe ran (CLOCK_MONOTONIC): from the first rank that begins it to the last that finishes it."""

    def __init__(self, ranks: int, clock: Callable[[], float] = monotonic) -> None:
        self._ranks = ranks
        self._clock = clock
        self._through: dict[tuple[Probe, int], int] = {}
        self._begun: dict[tuple[Probe, int], float] = {}
        self._ended: dict[tuple[Probe, int], float] = {}

    def take(self, rank: int, message: messages.AnyMessage) -> None:
        """Note that a rank begins or finishes a probe."""
        if isinstance(message, messages.Phase) and message.probe != "launch":
            # one rank may be a repetition ahead of another
            turn = self._through.get((message.probe, rank), 0)
            self._begun.setdefault((message.probe, turn), self._clock())
        elif isinstance(message, messages.Finished):
            turn = self._through.get((message.probe, rank), 0)
            self._through[message.probe, rank] = turn + 1
            if all(self._through.get((message.probe, r), 0) > turn for r in range(self._ranks)):
                self._ended[message.probe, turn] = self._clock()

    def spans(self, now_s: float) -> dict[Probe, Span]:
        """For each probe that began: its last complete repetition, or else from its beginning until now."""
        found: dict[Probe, Span] = {}
        for probe in PROBES:
            begun = [key for key in self._begun if key[0] == probe]
            whole = [key for key in begun if key in self._ended]
            if begun:
                key = max(whole or begun)
                found[probe] = (self._begun[key], self._ended.get(key, now_s))
        return found

    def whole(self, now_s: float) -> Span | None:
        """From the first beginning to the last end, or until now if a probe has not finished; None if none began."""
        if not self._begun:
            return None
        over = self._begun.keys() <= self._ended.keys()
        return min(self._begun.values()), max(self._ended.values()) if over else now_s


class Sampled:
    """The sampler of one run, and the time windows of its probes.

    `sampler`: None if no GPU is under load; Missing if it could not be started.
    """

    def __init__(self, plan: ProbePlan, sampler: Sampler | Missing | None) -> None:
        self._plan = plan
        self._sampler = sampler
        self._windows = Windows(plan.ranks)
        self._over_s: float | None = None

    def take(self, rank: int, message: messages.AnyMessage) -> None:
        """Note one message; to be passed as `run_probes(on_message=...)`."""
        self._windows.take(rank, message)

    def stop(self, patience_s: float | None = None) -> None:
        """End the sampler, because the load is over."""
        self._over_s = monotonic()
        if self._sampler is not None and not isinstance(self._sampler, Missing):
            self._sampler.stop(patience_s)

    def with_telemetry(self, measured: Measurements) -> Measurements:
        """The measurements with the telemetry sampled during each probe so far."""
        if self._sampler is None:
            return measured
        if isinstance(self._sampler, Missing):
            return msgspec.structs.replace(measured, not_run={**measured.not_run, "telemetry": self._sampler})
        now_s = self._over_s or monotonic()
        recording = self._sampler.recording()
        found = [recording.telemetry(probe, *span) for probe, span in self._windows.spans(now_s).items()]
        whole = self._windows.whole(now_s)
        if self._plan.duration_s is not None and whole is not None:
            found.append(recording.telemetry(WHOLE, *whole))
        return msgspec.structs.replace(measured, telemetry=tuple(found), unanswered=recording.unanswered)


@contextmanager
def sampling(plan: ProbePlan) -> Iterator[Sampled]:
    """Sample the plan's GPUs while the block runs; CPU ranks have none."""
    sampler: Sampler | Missing | None = None
    if plan.gpus:
        try:
            interval_s = interval_for(plan.duration_s or 0.0)
            sampler = Sampler([(index, uuid) for index, uuid, _ in plan.gpus], interval_s)
        except OSError as error:
            sampler = Missing(f"the sampler could not be started: {error.strerror or error}", "failed")
    sampled = Sampled(plan, sampler)
    try:
        yield sampled
    except BaseException:  # the run was interrupted: do not keep the user waiting
        sampled.stop(_HURRY_S)
        raise
    sampled.stop()
