"""What the training thread does now, and how long each phase of a step took: wall, CPU, and waiting for a CPU.

The phases are a stack: the time of a phase is without that of the phases inside it. Time outside all phases is
`between` the parts of one step (a loss function, clipping), or `host`: after the optimizer, before the next batch or
forward.
"""

from __future__ import annotations

import os
import threading
from time import monotonic_ns, thread_time_ns

from . import layout
from .device_timeline import DeviceTimeline
from .finite import NOT_FINITE, FiniteChecks
from .memory import MemoryReading
from .record_file import RecordFile

_SHARE = 0.003
_STRIDE_AT = 16
_MOST_STRIDE = 64
_COSTS_SEEN = 32


class Phases:
    """The stack of phases of the training thread, and the step that it is in. All times in ns until a step is kept."""

    def __init__(self, record: RecordFile) -> None:
        self.record = record
        self.steps = 0
        self.stack: list[int] = []
        self.device = DeviceTimeline(self._keep)
        self.finite = FiniteChecks()
        self.memory = MemoryReading()
        self.thread = threading.get_ident()
        self.owned = False
        self._marks = 0
        self._worked = False  # a forward or backward since the last optimizer step
        self._wall = [0] * len(layout.PHASES)
        self._cpu = [0] * len(layout.PHASES)
        self._last = 0
        self._last_cpu = 0
        self._queued = [0] * len(layout.PHASES)
        self._last_queued = 0
        self._schedule = _schedule_file()
        self._timed = True
        self._stride = 1
        self._first = 0
        self._rows = 0.0
        self._elements = 0.0
        self._forwards = 0
        self._model = 0

    def own(self) -> None:
        """The calling thread trains: only what it does counts. A framework may train in another than the main one."""
        if not self.owned or threading.get_ident() != self.thread:
            if threading.get_ident() != self.thread:
                self.stack.clear()
                self._last = 0
                self._schedule = _schedule_file()
            self.thread = threading.get_ident()
            self.owned = True

    def begin(self, phase: int) -> int:
        """Enter a phase; return the depth to `end` it at, or -1 if another thread trains."""
        if threading.get_ident() != self.thread:
            return -1
        depth = len(self.stack)
        self._mark(self.stack[-1] if depth else self._gap(phase), phase)
        self.stack.append(phase)
        if phase in (layout.FORWARD, layout.BACKWARD):
            self._worked = True
        return depth

    def end(self, depth: int) -> None:
        """Leave the phase that began at this depth, with all inside it."""
        if depth < 0 or len(self.stack) <= depth:
            return
        phase = self.stack[-1]
        del self.stack[depth:]
        self._mark(phase, self.stack[-1] if self.stack else layout.HOST)

    def turn(self, phase: int) -> None:
        """What remains of the innermost phase is another one: after its own work, backward only waits."""
        if self.stack and threading.get_ident() == self.thread:
            self._mark(self.stack[-1], phase)
            self.stack[-1] = phase

    def batch(self, module: int, rows: float, elements: float) -> None:
        """The model was called on a first input of this many rows and elements."""
        if not self._model:
            self._model = module
        if module == self._model:
            self._rows += rows
            self._elements += elements
            self._forwards += 1

    def end_step(self) -> None:
        """One step is finished: keep its figures, if it is one that is timed."""
        number = self.steps
        self.steps += 1
        finite = self.finite
        if NOT_FINITE in (finite.loss, finite.gradients):
            self.record.not_finite(number, finite.loss == NOT_FINITE, finite.gradients == NOT_FINITE)
        if self._timed:
            values = (
                float(self._last),
                *(ns / 1e6 for ns in self._wall),
                *(ns / 1e6 for ns in self._cpu),
                *(ns / 1e6 for ns in self._queued),
                self._rows,
                self._elements,
                float(self._forwards),
                finite.loss,
                finite.gradients,
                self.memory.mib(self._last),
                0.0,
            )
            if not self.device.end_step(number, values, finite):
                self._keep(number, values)
        if not self._forwards:
            self._model = 0
        if self.steps == _STRIDE_AT:
            self._stride = self._affordable_stride()
        self._timed = self.steps % self._stride == 0
        if self._timed:
            self._last, self._last_cpu, self._last_queued = self._clocks()
            self._wall, self._cpu, self._queued = ([0] * len(layout.PHASES) for _ in range(3))
        finite.next_step()
        self._rows = self._elements = 0.0
        self._forwards = 0
        self._worked = False
        self.record.now(self.steps, self._marks, layout.HOST, self._last)

    def _affordable_stride(self) -> int:
        """Of how many steps one is timed, a power of 2, so that its marks cost less than 0.3 % of the time."""
        costs = []
        for _ in range(_COSTS_SEEN):
            began = monotonic_ns()
            self._clocks()
            costs.append(monotonic_ns() - began)
        marks_ns = 2.0 * sorted(costs)[_COSTS_SEEN // 2] * self._marks / self.steps
        step_ns = (monotonic_ns() - self._first) / self.steps
        stride = 1
        while marks_ns / stride > _SHARE * step_ns and stride < _MOST_STRIDE:
            stride *= 2
        return stride

    def _gap(self, following: int) -> int:
        """What the time outside all phases was, by what follows it."""
        if following in (layout.DATA, layout.FORWARD):
            return layout.HOST
        return layout.BETWEEN if self._worked or following == layout.BACKWARD else layout.HOST

    def _mark(self, passed: int, following: int) -> None:
        self._marks += 1
        if not self._timed:
            now = monotonic_ns()
            self.record.now(self.steps, self._marks, following, now)
            return
        now, cpu, queued = self._clocks()
        if self._last:
            self._wall[passed] += now - self._last
            self._cpu[passed] += cpu - self._last_cpu
            self._queued[passed] += queued - self._last_queued
        elif not self._first:
            self._first = now
        self._last, self._last_cpu, self._last_queued = now, cpu, queued
        self.record.now(self.steps, self._marks, following, now)
        if self.device.active:
            self.device.mark(passed)

    def _clocks(self) -> tuple[int, int, int]:
        """Now, the CPU time of this thread, and how long it was ready without a CPU, in ns."""
        queued = 0
        if self._schedule >= 0 and not self.device.active:
            queued = int(os.pread(self._schedule, 64, 0).split()[1])
        return monotonic_ns(), thread_time_ns(), queued

    def _keep(self, number: int, values: tuple[float, ...]) -> None:
        loss, gradients = values[-4], values[-3]
        if NOT_FINITE in (loss, gradients):  # of a GPU, read later
            self.record.not_finite(number, loss == NOT_FINITE, gradients == NOT_FINITE)
        self.record.step(number, values)


def _schedule_file() -> int:
    """The file in which the kernel counts how long the calling thread waited for a CPU; -1 if it counts nothing."""
    try:
        descriptor = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        if len(os.pread(descriptor, 64, 0).split()) == 3:
            return descriptor
        os.close(descriptor)
    except OSError:
        return -1
    return -1
