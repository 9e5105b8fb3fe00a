"""Starts the collector process, reads its messages, and always ends it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Event, Thread
from time import monotonic

import msgspec

from gpudoctor.facts.deadlines import START_CALLS, Patience
from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.node import Driver, Unanswered
from gpudoctor.facts.nvml.channel import CollectorMessage, InFlight
from gpudoctor.facts.nvml.collector_ahead import take_ahead
from gpudoctor.facts.nvml.spawn import MAX_WORDS, DriverProcess
from gpudoctor.facts.system.sysfs import AnyPath
from gpudoctor.process.pipes import LineReader, LongLineError, pipe_with_child

_TICK_S = 0.05
_MOMENT_S = 0.01
_TURN_S = 0.2
_SLACK_S = 0.5
MOST_STARVED, MOST_STARVED_S = 2.0, 30.0  # CPU starvation extends a deadline by at most this factor, and seconds
_MAX_LINE_BYTES = 16 << 20
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, LongLineError)

Progress = Callable[[str], None]


class CollectorResult:
    """What the collector sent, and how it ended.

    `unanswered` are the calls that did not return; `failure` is why the rest is
    missing, None if the collector finished.
    """

    def __init__(self, failure: str | None = None) -> None:
        self.driver: Driver | None = None
        self.gpus: dict[int, Gpu] = {}
        self.done: set[int] = set()
        self.pairs: list[GpuPair] = []
        self.handle_errors: dict[int, str] = {}
        self.ended = False
        self.unanswered: tuple[Unanswered, ...] = ()
        self.failure = failure

    def take(self, message: CollectorMessage) -> None:
        if message.driver is not None:
            self.driver = message.driver
        if message.gpu is not None:
            self.gpus[message.gpu.index] = message.gpu
            if message.done:
                self.done.add(message.gpu.index)
        if message.handle_error is not None:
            index, text = message.handle_error
            self.handle_errors[index] = text
        self.pairs.extend(message.pairs)
        self.ended = self.ended or message.end


class Collector:
    """The process, in its own session and process group, and a thread that reads its messages.

    `end` must be called; it waits only briefly for a process that cannot be killed. Raise OSError
    if the process cannot be started.
    """

    def __init__(self, root: AnyPath, nvml: str | None = None) -> None:
        self._starting_until_s = 0.0
        self._collected = CollectorResult()
        # not Thread.join: an exception from a signal handler inside it marks the thread as ended
        self._heard = Event()
        ahead = take_ahead(root, nvml)
        if ahead is not None:
            self._pipe = LineReader(ahead.pipe, _MAX_LINE_BYTES)
            self._process = DriverProcess("collector", ahead.process, ahead.trace, ahead.errors, ahead.ordered_s)
            return
        with pipe_with_child("writes") as (pipe, out):
            order = {"out": out, "parent_pid": os.getpid(), "root": str(root), "nvml": nvml}
            self._process = DriverProcess.start("collector", "nvml.collector_child", order, (out,))
        self._pipe = LineReader(pipe, _MAX_LINE_BYTES)

    def listen(self, patience: Patience, progress: Progress | None = None) -> None:
        """Take messages until the end, the deadline, or until every remaining thread is in a hung call.

        Deadlines count from the start of the process, without the time in which the machine did not let it run: a
        busy node is not a broken driver. They grow by at most `MOST_STARVED` times the deadline, and
        `MOST_STARVED_S`. If no thread can be started, this method blocks and reads the messages itself.
        """

        def listen() -> None:
            try:
                self._listen(patience, progress)
            finally:
                self._heard.set()

        try:
            Thread(target=listen, daemon=True).start()
        except RuntimeError:  # can't start new thread: a limit on this container's processes
            listen()

    def wait(self, limit_s: float) -> None:
        """Wait until no more messages will come; longer than the limit only if starvation extended the deadline."""
        end_s = monotonic() + limit_s + _most_starved_s(limit_s)
        # in short turns: a signal that arrives just before a wait does not interrupt it, so its handler would not run
        while not self._heard.wait(_TURN_S) and monotonic() < end_s:
            pass

    def end(self, patience: Patience, interrupted: str | None = None) -> CollectorResult:
        """End the process and its group, and return what it sent. `interrupted`: why it was not allowed to finish."""
        was_over = self._heard.is_set()
        self._process.starved_s()
        now = monotonic()
        late = _unanswered(self._hung(self._process.calls()[0], now, patience), now)
        self._process.end()
        if not self._heard.wait(_SLACK_S):
            return CollectorResult(interrupted or "the collector could not be listened to")
        os.close(self._pipe.descriptor)
        self._process.close()
        collected = self._collected
        if interrupted is not None and not was_over and not collected.ended:
            collected.unanswered = late
            collected.failure = late[0].words if late else interrupted
        return collected

    def _listen(self, patience: Patience, progress: Progress | None) -> None:
        collected = self._collected
        reported = ""
        while not collected.ended:
            now = monotonic()
            starved_s = min(self._process.starved_s(_TICK_S), _most_starved_s(patience.whole_s))
            calls, between = self._process.calls()
            hung = self._hung(calls, now, patience)
            over = now - self._process.started_s > patience.whole_s + starved_s
            # if every thread that has not finished is in a hung call, nothing more will come
            if over or (not between and calls and len(hung) == len(calls)):
                # take what was written so far
                with suppress(*_UNREADABLE):
                    while monotonic() < now + _SLACK_S and self._take(_MOMENT_S):
                        pass
                if not collected.ended:
                    self._give_up(calls, hung, now, patience)
                return
            if progress is not None and (text := _progress(collected, calls, now)) != reported:
                progress(text)
                reported = text
            try:
                open_still = self._take(_TICK_S) is not None
            except _UNREADABLE as error:
                # whatever wrote it (a library may print): nothing that follows can be trusted
                collected.failure = f"the collector sent something that is no message: {error}"[:MAX_WORDS]
                return
            if not open_still and not collected.ended:
                collected.unanswered, collected.failure = self._process.post_mortem()
                return
        if collected.gpus.keys() - collected.done:
            collected.failure = f"a reader stopped early: {self._process.last_words()}"

    def _hung(self, calls: tuple[InFlight, ...], now: float, patience: Patience) -> tuple[InFlight, ...]:
        """The calls that have exceeded their deadline, not counting the time they waited for a GPU to wake."""
        if any(call.call in START_CALLS and now - call.started_s <= patience.start_s for call in calls):
            self._starting_until_s = now
        return tuple(
            call
            for call in calls
            if (
                now - call.started_s > patience.start_s
                if call.call in START_CALLS
                else now - max(call.started_s, self._starting_until_s) > patience.call_s
            )
        )

    def _take(self, wait_s: float) -> bool | None:
        """Take what is in the pipe; False if nothing came in time, None at its end."""
        lines = self._pipe.lines(wait_s)
        for line in lines or ():
            self._collected.take(msgspec.json.decode(line, type=CollectorMessage))
        return None if lines is None else bool(lines)

    def _give_up(self, calls: tuple[InFlight, ...], hung: tuple[InFlight, ...], now: float, patience: Patience) -> None:
        # also report starts that are within their own deadline: the checks know how long a start may take
        starting = (call for call in calls if call.call in START_CALLS and now - call.started_s > patience.call_s)
        reported = sorted({*hung, *starting}, key=lambda call: call.slot)
        unanswered = self._collected.unanswered = _unanswered(reported, now)
        if unanswered:
            self._collected.failure = unanswered[0].words
            return
        # no call is to blame: a slow disk, an overloaded machine, a short deadline
        longest = min(calls, key=lambda call: call.started_s, default=None)
        busy = "" if longest is None else f" (it is in {longest.where})"
        self._collected.failure = f"the collector did not finish in {patience.whole_s:g} s{busy}"


def _most_starved_s(deadline_s: float) -> float:
    return min(MOST_STARVED * deadline_s, MOST_STARVED_S)


def _unanswered(calls: Iterable[InFlight], now: float) -> tuple[Unanswered, ...]:
    return tuple(Unanswered(call.call, call.gpu, round(now - call.started_s, 3)) for call in calls)


def _progress(collected: CollectorResult, calls: tuple[InFlight, ...], now: float) -> str:
    slow = next((call for call in calls if call.call in START_CALLS and now - call.started_s > 1.0), None)
    if slow is not None:
        return f"{slow.call}: the driver is starting the GPUs"
    if not collected.gpus:
        return "reading the driver"
    return f"reading GPUs: {len(collected.done)} of {len(collected.gpus)}"
