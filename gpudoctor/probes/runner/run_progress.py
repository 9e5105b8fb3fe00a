"""Where each rank is in the repetitions of a run, what each has measured so far, and what was sampled meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

import msgspec

from gpudoctor.facts.model.measurements import PROBES, Measurements, Probe
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.telemetry import Burn
from gpudoctor.facts.nvml.sampler import Sampler, interval_for
from gpudoctor.probes.collective.merge import merged_collectives, merged_pairs
from gpudoctor.probes.runner import messages
from gpudoctor.probes.runner.merge import merged_loading, merged_strategies, merged_training
from gpudoctor.probes.runner.plan import ProbePlan
from gpudoctor.probes.runner.repetitions import Repetition, over_repetitions, series_of, wrong_results
from gpudoctor.text.grouped import grouped

WRONG_KEPT = 50

S = TypeVar("S", bound=messages.ProbeSample)
WHOLE = "burn"  # name of the window that spans all repetitions
_HURRY_S = 0.3
Span = tuple[float, float]


class _Samples(msgspec.Struct):
    """All samples of one unfinished repetition, each with its rank, in order of arrival."""

    taken: list[tuple[int, messages.ProbeSample]] = []
    begun: list[Probe] = []
    finished: dict[Probe, set[int]] = {}
    ended_s: dict[Probe, float] = {}

    def by_rank(self, kind: type[S]) -> dict[int, list[S]]:
        """The samples of one kind by rank, ranks ascending."""
        in_order = sorted(self.taken, key=lambda entry: entry[0])
        return grouped((rank, sample) for rank, sample in in_order if isinstance(sample, kind))

    def last(self, kind: type[S]) -> dict[int, S]:
        """The last sample of one kind by rank, ranks ascending; for kinds sent once per repetition."""
        return {rank: samples[-1] for rank, samples in self.by_rank(kind).items()}


class RunProgress:
    """Collects samples as they arrive; one rank may be a repetition ahead of another."""

    def __init__(self, plan: ProbePlan, clock: Callable[[], float] = monotonic) -> None:
        self._plan = plan
        self._clock = clock
        self._rendezvous_at = clock()
        self.repetition_of = [0] * plan.ranks  # by rank, counted from 0
        self._over: list[Repetition] = []
        self._under_way: dict[int, _Samples] = {}

    def mark_rendezvous(self) -> None:
        """Note that all ranks have joined: times count from now."""
        self._rendezvous_at = self._clock()

    @property
    def running(self) -> list[str]:
        """Probes that some rank has begun and not all have finished; from the second repetition on with its number."""
        return [
            probe if number == 0 else f"{probe}, round {number + 1}"
            for number, samples in sorted(self._under_way.items())
            for probe in samples.begun
            if len(samples.finished.get(probe, ())) < self._plan.ranks
        ]

    def where(self, rank: int) -> str | None:
        """Repetition and time left, as text; None if there is one repetition only."""
        duration_s = self._plan.duration_s
        if duration_s is None:
            return None
        left_s = int(duration_s - (self._clock() - self._rendezvous_at))
        left = f"{left_s // 60} min {left_s % 60} s left" if left_s > 0 else "the last one"
        return f"round {self.repetition_of[rank] + 1}, {left}"

    def begin(self, rank: int, probe: Probe) -> None:
        """Note that a rank begins a probe, or another phase of it."""
        samples = self._samples_of(rank)
        if probe not in samples.begun:
            samples.begun.append(probe)

    def take(self, rank: int, sample: messages.ProbeSample) -> None:
        """Add a rank's sample to the repetition the rank is in."""
        self._samples_of(rank).taken.append((rank, sample))

    def finish(self, rank: int, probe: Probe) -> None:
        """Note that a rank has finished a probe; the plan's last probe ends the rank's repetition."""
        number, samples = self.repetition_of[rank], self._samples_of(rank)
        samples.finished.setdefault(probe, set()).add(rank)
        if len(samples.finished[probe]) == self._plan.ranks:
            samples.ended_s[probe] = self._clock() - self._rendezvous_at
        if probe == self._plan.probes[-1]:
            self.repetition_of[rank] += 1
            if probe in samples.ended_s:
                self._over.append(self._merged(self._under_way.pop(number)))

    def began(self, probe: Probe) -> bool:
        """Whether any rank has ever begun the probe."""
        return bool(self._over) or any(probe in samples.begun for samples in self._under_way.values())

    def measured(self) -> Measurements:
        """The measurements of all repetitions, unfinished ones included."""
        found = over_repetitions(self._repetitions())
        return found if self._plan.duration_s is None else msgspec.structs.replace(found, burn=self._burn())

    def _burn(self) -> Burn:
        repetitions, wrong = self._repetitions(), wrong_results(self._repetitions())
        burn = Burn(
            asked_s=self._plan.duration_s or 0.0,
            duration_s=max(self._over[-1].ended_s.values()) if self._over else 0.0,
            rounds=len(self._over),
            series=series_of(repetitions),
            wrong=wrong[:WRONG_KEPT],
            wrong_count=len(wrong),
        )
        if self._plan.backend == "nccl":
            return burn
        none = Missing("CPU ranks put no load on a GPU")
        return msgspec.structs.replace(burn, counted_s=none, counters=none, kernel_events=none)

    def _samples_of(self, rank: int) -> _Samples:
        return self._under_way.setdefault(self.repetition_of[rank], _Samples())

    def _repetitions(self) -> list[Repetition]:
        under_way = [self._merged(samples) for _, samples in sorted(self._under_way.items())]
        return [*self._over, *under_way] or [self._merged(_Samples())]

    def _merged(self, samples: _Samples) -> Repetition:
        ranks, device = self._plan.ranks, self._plan.device
        links = list(samples.last(messages.LinkSample).values())
        no_peers = [link.no_peers for link in links if link.no_peers is not None]
        loadings = {rank: sample.loading for rank, sample in samples.last(messages.LoaderSample).items()}
        measured = Measurements(
            collectives=merged_collectives(samples.by_rank(messages.CollectiveSample), ranks),
            pairs=merged_pairs(samples.by_rank(messages.PairSample)),
            host_links=tuple(link.host for link in links if link.host is not None),
            peer_links=tuple(peer for link in links for peer in link.peers),
            compute=tuple(sample.compute for sample in samples.last(messages.ComputeSample).values()),
            training=merged_training(samples.last(messages.TrainSample), ranks, device),
            strategies=merged_strategies(samples.taken, ranks, device),
            data_loading=merged_loading(loadings, ranks),
            not_run={"peer": no_peers[0]} if no_peers else {},
        )
        return Repetition(measured, samples.ended_s)


class Windows:
    """When each probe ran (CLOCK_MONOTONIC): from the first rank that begins it to the last that finishes it."""

    def __init__(self, ranks: int, clock: Callable[[], float] = monotonic) -> None:
        self._ranks = ranks
        self._clock = clock
        self._through: dict[tuple[Probe, int], int] = {}
        self._begun: dict[tuple[Probe, int], float] = {}
        self._ended: dict[tuple[Probe, int], float] = {}

    def take(self, rank: int, message: messages.RankMessage) -> None:
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


class Sampled(Windows):
    """The time windows of the probes of one run, whose `take` is for `run_probes(on_message=...)`, and its sampler.

    `sampler`: None if no GPU is under load; Missing if it could not be started.
    """

    def __init__(self, plan: ProbePlan, sampler: Sampler | Missing | None) -> None:
        super().__init__(plan.ranks)
        self._plan = plan
        self._sampler = sampler
        self._over_s: float | None = None

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
        found = [recording.telemetry(probe, *span) for probe, span in self.spans(now_s).items()]
        whole = self.whole(now_s)
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
