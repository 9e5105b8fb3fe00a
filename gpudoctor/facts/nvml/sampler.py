"""Samples GPUs while something else loads them: starts the sampling process, and always ends it.

The samples are in shared memory that this process can read at any time, so neither process waits for the other, and
samples survive whatever happens to the sampler.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from time import monotonic

import msgspec

from gpudoctor.facts.deadlines import CALL, START
from gpudoctor.facts.model.node import Unanswered
from gpudoctor.facts.nvml.samples import Sample, SampleRecording, SamplerLine
from gpudoctor.facts.nvml.spawn import MAX_WORDS, DriverProcess
from gpudoctor.process.pipes import anonymous_file, content, pipe_with_child

INTERVAL_S = 0.2
_MOST_TICKS = 5000  # a long load is sampled less often: 5000 samples of 8 GPUs are some 10 MB
_TICK_S = 0.05
_SLACK_S = 1.0


def interval_for(load_s: float) -> float:
    """Seconds between two samples for a load of this length."""
    return max(INTERVAL_S, load_s / _MOST_TICKS)


class Sampler:
    """The sampling process. `stop` must be called; `recording` may be called at any time, before or after.

    `gpus` are NVML indices and UUIDs. A call that has not returned for `call_deadline_s` when the
    sampler is stopped counts as unanswered, and the process is abandoned. `nvml` (module:factory:argument)
    replaces pynvml in tests. Raise OSError if the process cannot be started.
    """

    def __init__(
        self,
        gpus: Sequence[tuple[int, str]],
        interval_s: float = INTERVAL_S,
        call_deadline_s: float = CALL.seconds,
        nvml: str | None = None,
    ) -> None:
        self._gpus = tuple(gpus)
        self._call_deadline_s = call_deadline_s
        self._final: SampleRecording | None = None
        with ExitStack() as retained:
            self._lines = anonymous_file()
            retained.callback(os.close, self._lines)
            with pipe_with_child("reads") as (self._stop, stop):
                order = {"out": self._lines, "stop": stop, "gpus": self._gpus, "interval_s": interval_s, "nvml": nvml}
                self._process = DriverProcess.start("sampler", "nvml.sampler_child", order, (self._lines, stop))
            retained.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def recording(self) -> SampleRecording:
        """The samples so far, or all of them after `stop`."""
        return self._final or self._recorded()

    def stop(self, patience_s: float | None = None) -> None:
        """Have it take a last sample, and end it; if it is in a call, wait until that returns or is overdue.

        `patience_s`: a shorter limit, for callers that have no time to wait for a late call.
        """
        if self._final is not None:
            return
        unanswered: tuple[Unanswered, ...] = ()
        failure: str | None = "the sampler was ended early"
        os.close(self._stop)
        try:
            unanswered, failure = self._wait(self._call_deadline_s + _SLACK_S if patience_s is None else patience_s)
        finally:
            if not self._process.end() and failure is None:
                failure = "the sampler could not be ended: it is stuck in the kernel"
            self._final = self._recorded(unanswered, failure)
            os.close(self._lines)
            self._process.close()

    def _wait(self, patience_s: float) -> tuple[tuple[Unanswered, ...], str | None]:
        """Wait until the process has ended; return the calls that did not return, and why sampling failed."""
        limit = monotonic() + patience_s
        while self._process.ends_within(_TICK_S) is None:
            unanswered = self._process.late_calls(self._call_deadline_s, START.seconds)
            if unanswered:
                return unanswered, unanswered[0].words
            if monotonic() > limit:
                return (), f"the sampler did not end in {patience_s:g} s"
        _, text, over = self._read()
        return ((), text) if over else self._process.post_mortem()

    def _recorded(self, unanswered: tuple[Unanswered, ...] = (), failure: str | None = None) -> SampleRecording:
        samples, text, _ = self._read()
        return SampleRecording(self._gpus, samples, failure or text, unanswered)

    def _read(self) -> tuple[list[Sample], str | None, bool]:
        """The samples so far, why there will be no more, and whether the sampler has finished."""
        indices = {index for index, _ in self._gpus}
        decoder = msgspec.json.Decoder(SamplerLine)
        samples: list[Sample] = []
        for line in content(self._lines).split(b"\n")[:-1]:  # the last one may be half written
            try:
                reported = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                # whatever wrote it: nothing that follows can be trusted
                return samples, f"the sampler wrote something that is no sample: {error}"[:MAX_WORDS], True
            if reported.sample is not None and reported.sample.gpu in indices:
                samples.append(reported.sample)
            if reported.end or reported.failure is not None:
                return samples, reported.failure, True
        return samples, None, False
