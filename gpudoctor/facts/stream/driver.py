"""Poll the driver through a child process that may hang or die."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from time import monotonic

import msgspec

from gpudoctor.facts.deadlines import CALL, PATIENCE, START, START_CALLS
from gpudoctor.facts.model.driver import on_gpu
from gpudoctor.facts.nvml.spawn import MAX_WORDS, DriverProcess
from gpudoctor.facts.stream.messages import ReaderAnswer, Silence
from gpudoctor.process.ending import reap
from gpudoctor.process.pipes import LineReader, LongLineError, pipe_with_child, write_all

LONGEST_BACKOFF_S = 60.0
_MAX_LINE_BYTES = 16 << 20
_MAX_STUCK = 3  # readers that are stuck in the kernel and cannot be killed; no more are started after that


class DriverWatch:
    """The driver as `gpudoctor watch` sees it. `close` must be called; it returns quickly.

    `gpus`: NVML index and UUID (None if unknown) of each; if empty, all that the driver counts. A reading waits for at
    most `patience_s`, then reports what it waits for. If a call has not returned after `call_deadline_s`
    (`start_deadline_s` for calls that initialise a GPU), its process is killed and started again after
    `first_backoff_s`, then after twice the time on each failure. `nvml` (module:factory:argument) replaces pynvml in
    tests.
    """

    def __init__(
        self,
        gpus: Sequence[tuple[int, str | None]],
        interval_s: float = 1.0,
        nvml: str | None = None,
        call_deadline_s: float = CALL.seconds,
        start_deadline_s: float = START.seconds,
        first_backoff_s: float = 1.0,
        patience_s: float = PATIENCE.seconds,
    ) -> None:
        self._order = {"gpus": tuple(gpus), "interval_s": interval_s, "nvml": nvml}
        self._interval_s = interval_s
        self._call_deadline_s = call_deadline_s
        self._start_deadline_s = start_deadline_s
        self._first_backoff_s = first_backoff_s
        self._patience_s = min(patience_s, call_deadline_s)
        self._reader: _Reader | None = None
        self._failures = 0
        self._next_start_s = 0.0
        self._stuck: list[int] = []
        self._silent_since_s: float | None = None
        self._hung: tuple[str, float] | None = None
        self._words = ""

    @property
    def pid(self) -> int | None:
        """The id of the process that calls the driver; None while there is none."""
        return None if self._reader is None else self._reader.process.pid

    def read(self) -> tuple[ReaderAnswer | None, Silence | None]:
        """The current answer; or, after at most `patience_s`, a Silence with the reason why there is none."""
        reader = self._reader = self._reader or self._start()
        if reader is None:
            return None, self._silence()
        try:
            # while the driver is silent, ticks must not be delayed
            patience_s = self._patience_s if self._silent_since_s is None else min(self._interval_s / 2, 1.0)
            answer = reader.answer(patience_s)
        except _EndedError as ended:
            self._give_up(reader, str(ended))
            return None, self._silence()
        if answer is None:
            self._check_calls(reader)
            return None, self._silence()
        if answer.failure is not None:
            self._give_up(reader, answer.failure[:MAX_WORDS])
            return None, self._silence()
        if monotonic() - reader.process.started_s > LONGEST_BACKOFF_S:
            self._failures = 0
        self._silent_since_s, self._hung, self._words = None, None, ""
        return answer, None

    def close(self) -> None:
        if self._reader is not None:
            self._end(self._reader)
        # a process that was only slow to exit has ended by now
        self._stuck = [pid for pid in self._stuck if reap(pid) is None]

    def _start(self) -> _Reader | None:
        if monotonic() < self._next_start_s:
            return None
        self._stuck = [pid for pid in self._stuck if reap(pid) is None]
        if len(self._stuck) >= _MAX_STUCK:
            return None
        try:
            return _Reader(self._order)
        except OSError as error:
            self._failed(f"the reader of the driver could not be started: {error.strerror or error}", monotonic())
            return None

    def _check_calls(self, reader: _Reader) -> None:
        """Record why there is no answer yet, and kill the process if a call is overdue."""
        now = monotonic()
        took_s = now - reader.asked_s
        late = max(reader.process.late_calls(0.0), key=lambda call: call.waited_s, default=None)
        if late is None:
            self._silent(f"the reader of the driver has not answered for {took_s:.0f} s", reader.asked_s)
            if took_s > self._start_deadline_s:
                self._give_up(reader, f"the reader of the driver did not answer in {took_s:.0f} s")
            return
        where = on_gpu(late.call, late.gpu)
        limit_s = self._start_deadline_s if late.call in START_CALLS else self._call_deadline_s
        if late.waited_s < min(limit_s, self._call_deadline_s):
            # many slow calls, or one that has only just begun
            self._silent(f"the driver has not told all for {took_s:.0f} s (now in {where})", reader.asked_s)
            return
        self._hung = (where, self._hung[1]) if self._hung and self._hung[0] == where else (where, now - late.waited_s)
        self._silent("", self._hung[1])
        if late.waited_s >= limit_s:
            self._end(reader)
            self._delay_start()

    def _give_up(self, reader: _Reader, text: str) -> None:
        self._end(reader)
        self._failed(text, reader.asked_s)

    def _failed(self, text: str, since_s: float) -> None:
        self._hung = None
        delay_s = self._delay_start()
        self._silent(f"{text}; asked again in {delay_s:g} s", since_s)

    def _delay_start(self) -> float:
        delay_s = min(LONGEST_BACKOFF_S, self._first_backoff_s * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._next_start_s = monotonic() + delay_s
        return delay_s

    def _end(self, reader: _Reader) -> None:
        if not reader.end():
            self._stuck.append(reader.process.pid)
        self._reader = None

    def _silent(self, text: str, since_s: float) -> None:
        self._words = text
        if self._silent_since_s is None:
            self._silent_since_s = time.time() - (monotonic() - since_s)

    def _silence(self) -> Silence:
        text = self._words
        if self._hung is not None:
            where, started_s = self._hung
            text = f"{where} has not returned for {monotonic() - started_s:.0f} s"
        if len(self._stuck) >= _MAX_STUCK:
            text += f"; {_MAX_STUCK} readers are stuck in the kernel, and no more is started"
        return Silence(round(self._silent_since_s or time.time(), 3), text)


class _EndedError(Exception):
    """The process ended, or sent something that is not an answer."""


class _Reader:
    """The process and its two pipes. It gets a new request only after it has answered the last one."""

    def __init__(self, order: dict[str, object]) -> None:
        self.asked_s = monotonic()
        self._asked = False
        with pipe_with_child("reads") as (self._requests, requests), pipe_with_child("writes") as (answers, out):
            whole = {**order, "requests": requests, "out": out}
            self.process = DriverProcess.start("reader", "stream.driver_child", whole, (requests, out))
        self._out = LineReader(answers, _MAX_LINE_BYTES)

    def answer(self, patience_s: float) -> ReaderAnswer | None:
        """The answer to the pending or a new request; None if there is none within `patience_s`.

        Raise _EndedError if the process ended or its answer is invalid.
        """
        if not self._asked:
            self.asked_s = monotonic()
            self.process.starved_s()  # reset: CPU starvation before the request does not count
            try:
                write_all(self._requests, b".")
            except BrokenPipeError:
                raise _EndedError(self._what_became()) from None
            self._asked = True
        try:
            lines = self._out.lines(patience_s)
            if lines is None:
                raise _EndedError(self._what_became())
            if not lines:
                return None
            answer = msgspec.json.decode(lines[0], type=ReaderAnswer)
        except (msgspec.MsgspecError, UnicodeDecodeError, LongLineError) as error:
            raise _EndedError(
                f"the reader of the driver sent something that is no answer: {error}"[:MAX_WORDS]
            ) from None
        # checked last, so that an error in the first line is always reported: how many lines one read gets is random
        if lines[1:] or self._out.rest:
            raise _EndedError("the reader of the driver said more than it was asked")
        self._asked = False
        return answer

    def _what_became(self) -> str:
        return self.process.post_mortem()[1]

    def end(self) -> bool:
        """End the process; False if it is stuck in the kernel."""
        for pipe in (self._requests, self._out.descriptor):
            os.close(pipe)
        ended = self.process.end()
        self.process.close()
        return ended
