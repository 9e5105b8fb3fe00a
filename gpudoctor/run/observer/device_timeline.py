"""The phases as the GPU went through them: an event at each change of phase, read when the GPU has passed it.

The host runs ahead of the GPU, so that its own times say when work was enqueued. Between two events of one
stream lies the work of a phase, or the time in which the stream waited: for a collective, or for a late host.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from . import layout
from .finite import FiniteChecks

_MOST_EVENTS = 256  # of one step; the marks of a step with more are timed by the host
_MOST_PENDING = 256


class DeviceTimeline:
    """Records events while a step runs, and passes the step on once the GPU is through it."""

    def __init__(self, keep: Callable[[int, tuple[float, ...]], None]) -> None:
        self.active = False
        self._keep = keep
        self._cuda: Any = None
        self._events: list[tuple[int, Any]] = []
        self._free: list[Any] = []
        self._pending: deque[tuple[int, tuple[float, ...], list[tuple[int, Any]], FiniteChecks]] = deque()

    def mark(self, passed: int) -> None:
        """The phase that the host has just passed ends here on the stream."""
        cuda = self._cuda
        if len(self._events) >= _MOST_EVENTS or cuda.is_current_stream_capturing():
            return
        event = self._free.pop() if self._free else cuda.Event(enable_timing=True)
        event.record()
        self._events.append((passed, event))

    def begin_step(self) -> None:
        """A step begins after one that was not timed."""
        self._free += [event for _, event in self._events]
        self._events = []
        self.mark(layout.HOST)

    def end_step(self, number: int, values: tuple[float, ...], finite: FiniteChecks) -> bool:
        """Take over a step that ended on the host; False if its figures are those of the host."""
        if not self.active:
            self._begin_if_on_gpu()
            return False
        if len(self._events) < 2 or len(self._events) >= _MOST_EVENTS or len(self._pending) >= _MOST_PENDING:
            self._free += [event for _, event in self._events[:-1]]
            del self._events[:-1]
            return False
        self._pending.append((number, values, self._events, finite.handed_over()))
        self._events = self._events[-1:]
        self._read()
        return True

    def _begin_if_on_gpu(self) -> None:
        torch = sys.modules["torch"]
        if torch.cuda.is_initialized():
            self._cuda = torch.cuda
            self.active = True

    def _read(self) -> None:
        while self._pending:
            number, values, events, finite = self._pending[0]
            if not events[-1][1].query():
                return
            self._pending.popleft()
            wall = [0.0] * len(layout.PHASES)
            for (_, before), (phase, after) in zip(events, events[1:]):  # noqa: B905 - Python 3.8
                wall[phase] += before.elapsed_time(after)
            loss, gradients = finite.read_on_gpu()
            self._keep(number, (values[0], *wall, *values[1 + len(wall) : -4], loss, gradients, *values[-2:]))
            self._free += [event for _, event in events[:-1]]
