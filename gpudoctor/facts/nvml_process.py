"""Starts the collector process, listens to it, and ends it without fail."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic

import msgspec

from gpudoctor.facts.gpu import Gpu, GpuPair
from gpudoctor.facts.node import Driver, Unanswered
from gpudoctor.facts.nvml_channel import SLOW_CALLS, InFlight, Message
from gpudoctor.facts.nvml_spawn import MAX_WORDS, DriverProcess, words_of

_TICK_S = 0.05
_SLACK_S = 0.5
_MAX_LINE_BYTES = 16 << 20

Progress = Callable[[str], None]


class Collected:
    """What came from the collector, and how it ended.

    `unanswered` are the calls that did not return; `failure` says in words why the rest is
    missing, None where all was said.
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

    def take(self, message: Message) -> None:
        if message.driver is not None:
            self.driver = message.driver
        if message.gpu is not None:
            self.gpus[message.gpu.index] = message.gpu
            if message.done:
                self.done.add(message.gpu.index)
        if message.handle_error is not None:
            index, words = message.handle_error
            self.handle_errors[index] = words
        self.pairs.extend(message.pairs)
        self.ended = self.ended or message.end


class Collector:
    """The process, in its own session and process group.

    `end` and then `close` must be called; `end` waits only for a moment for a process that will not die.
    Raise OSError where the process cannot be started.
    """

    def __init__(self, root: Path, nvml: str | None = None) -> None:
        with ExitStack() as kept:
            self._pipe, write_end = os.pipe()
            kept.callback(os.close, self._pipe)
            try:
                order = {"pipe": write_end, "root": str(root), "nvml": nvml}
                self._process = DriverProcess("collector", "nvml_child", order, (write_end,))
            finally:
                os.close(write_end)
            kept.pop_all()
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def listen(self, deadline_s: float, call_deadline_s: float, progress: Progress | None = None) -> Collected:
        """Take messages until the end, the deadline, or until every thread that is left sits in a hung call.

        Deadlines count from the start of the process. nvmlInit and the handle lookup may take
        the whole deadline: without persistence mode they start the GPUs.
        """
        collected = Collected()
        said = ""
        while not collected.ended:
            now = monotonic()
            calls, between = self._process.crumbs.read()
            if now - self._process.started_s > deadline_s or (not between and _all_hang(calls, now, call_deadline_s)):
                # what was written until now is still taken
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    while monotonic() < now + _SLACK_S and self._take(collected, 0.0):
                        pass
                if not collected.ended:
                    self._give_up(collected, calls, now, deadline_s, call_deadline_s)
                return collected
            if progress is not None and (words := _progress(collected, calls, now)) != said:
                progress(words)
                said = words
            try:
                open_still = self._take(collected, _TICK_S) is not None
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                # whoever wrote it: nothing that follows can be trusted
                collected.failure = f"the collector sent something that is no message: {error}"[:MAX_WORDS]
                return collected
            if not open_still and not collected.ended:
                collected.unanswered, collected.failure = self._process.post_mortem()
                return collected
        if collected.gpus.keys() - collected.done:
            collected.failure = f"a reader stopped early: {self._process.last_words()}"
        return collected

    def _take(self, collected: Collected, wait_s: float) -> bool | None:
        """Take what the pipe holds; False where nothing came in time, None at its end."""
        if not select.select([self._pipe], [], [], wait_s)[0]:
            return False
        data = os.read(self._pipe, 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            raise msgspec.DecodeError("a line without an end")
        for line in lines:
            collected.take(msgspec.json.decode(line, type=Message))
        return True

    def _give_up(
        self, collected: Collected, calls: tuple[InFlight, ...], now: float, deadline_s: float, call_deadline_s: float
    ) -> None:
        collected.unanswered = tuple(
            Unanswered(call.call, call.gpu, round(now - call.started_s, 3))
            for call in calls
            if now - call.started_s > call_deadline_s
        )
        if not collected.unanswered:
            # no call is to blame: a slow disk, a machine without a moment to spare, a short deadline
            busy = f" (it is in {calls[0].call})" if calls else ""
            collected.failure = f"the collector did not finish in {deadline_s:g} s{busy}"
            return
        collected.failure = words_of(collected.unanswered[0])

    def close(self) -> None:
        """Let go of pipe and memory, once nobody listens."""
        os.close(self._pipe)
        self._process.close()

    def end(self) -> bool:
        """End the process and its group; True where nothing is left of it."""
        return self._process.end()


def _all_hang(calls: tuple[InFlight, ...], now: float, call_deadline_s: float) -> bool:
    """Every thread that has not finished sits in a call for too long: nothing more will come."""
    return bool(calls) and all(call.call not in SLOW_CALLS and now - call.started_s > call_deadline_s for call in calls)


def _progress(collected: Collected, calls: tuple[InFlight, ...], now: float) -> str:
    if not collected.gpus:
        slow = next((call for call in calls if now - call.started_s > 1.0), None)
        return f"{slow.call}: the driver is starting the GPUs" if slow else "reading the driver"
    return f"reading GPUs: {len(collected.done)} of {len(collected.gpus)}"
