"""What the training thread does now, and how long each phase of a step took: wall, CPU, and waiting for a CPU.

The phases are a stack: the time of a phase is without that of the phases inside it. Time outside all phases is
`between` the parts of one step (a loss function, clipping), or `host`: after the optimizer, before the next batch or
forward. In a step that is not timed only the stack is kept up, which the sampling thread writes down now and then: a
rank that hangs is found by it.
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
_STRIDE_AT = 128  # a short run is timed in every step
_MOST_STRIDE = 64
_LEAST_WAIT_NS = 20_000
_HOOK_COST = 5.0  # what a timed step costs, in what its marks measure of themselves: benchmarks/run_overhead.py


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
        self.entries = 0  # phases entered in steps that are not timed
        self.waits_in = b""  # the collective of the innermost wait
        self._marks = 0
        self._seen = (0, layout.HOST)
        self._work = layout.HOST  # the last forward or backward since the optimizer's step
        self._wall = [0] * len(layout.PHASES)
        self._cpu = [0] * len(layout.PHASES)
        self._last = 0
        self._last_cpu = 0
        self._queued = [0] * len(layout.PHASES)
        self._last_queued = 0
        self._schedule = _schedule_file()
        self.timed = True
        self._stride = 1
        self._half_ns = 0
        self._costs_ns: list[int] = []  # of the marks from half the way on until the stride is chosen
        self._rows = 0.0
        self._elements = 0.0
        self._forwards = 0
        self._model = 0

    def own(self) -> None:
        """The calling thread trains: only what it does counts. A framework may train in another than the main one."""
        if not self.owned or threading.get_ident() != self.thread:
            if threading.get_ident() != self.thread:
                self.stack.clear()
                self._last = self._last_cpu = 0
                self._schedule = _schedule_file()
            self.thread = threading.get_ident()
            self.owned = True

    def begin(self, phase: int) -> int:
        """Enter a phase; return the depth to `end` it at, or -1 if another thread trains."""
        if threading.get_ident() != self.thread:
            return -1
        depth = len(self.stack)
        if self.timed:
            self._mark(self.stack[-1] if depth else self._gap(phase), phase)
        self.entries += 1
        self.stack.append(phase)
        if phase in (layout.FORWARD, layout.BACKWARD):
            self._work = phase
        return depth

    def end(self, depth: int) -> None:
        """Leave the phase that began at this depth, with all inside it."""
        if depth < 0 or len(self.stack) <= depth:
            return
        phase = self.stack[-1]
        del self.stack[depth:]
        if self.timed:
            self._mark(phase, self.stack[-1] if self.stack else layout.HOST)

    def turn(self, phase: int) -> None:
        """What remains of the innermost phase is another one: after its own work, backward only waits."""
        if self.stack and threading.get_ident() == self.thread:
            if self.timed:
                self._mark(self.stack[-1], phase)
            self.stack[-1] = phase

    def write_now(self) -> None:
        """Write down the phase, and when it moved: what the sampling thread does in a step that is not timed."""
        now_ns = monotonic_ns()  # first: a mark made meanwhile is the later one
        seen = (self.entries, self.stack[-1] if self.stack else layout.HOST)
        if not self.timed and seen != self._seen:
            self._seen = seen
            self.record.collective(self.waits_in)
            self.record.sampled(seen[1], now_ns)

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
        if self.timed:
            self._end_timed_step(number)
        if self.steps == _STRIDE_AT // 2:
            self._half_ns = monotonic_ns()
        elif self.steps == _STRIDE_AT and self._costs_ns:
            self._stride = self._affordable_stride()
        finite.next_step()
        self.timed = self.steps % self._stride == 0
        if self.timed:
            self._begin_timed_step()
        self.record.now(self.steps, self._marks, layout.HOST, self._last if self.timed else monotonic_ns())

    def _end_timed_step(self, number: int) -> None:
        values = (
            float(self._last),
            *(ns / 1e6 for ns in self._wall),
            *(ns / 1e6 for ns in self._cpu),
            *(ns / 1e6 for ns in self._queued),
            self._rows,
            self._elements,
            float(self._forwards),
            self.finite.loss,
            self.finite.gradients,
            self.memory.mib(self._last),
            0.0,
        )
        if not self.device.end_step(number, values, self.finite):
            self._keep(number, values)

    def _begin_timed_step(self) -> None:
        self._last, self._last_cpu, self._last_queued = self._clocks()
        if self._stride > 1 and self.device.active:
            self.device.begin_step()
        self._wall, self._cpu, self._queued = ([0] * len(layout.PHASES) for _ in range(3))
        if not self._forwards:
            self._model = 0
        self._rows = self._elements = 0.0
        self._forwards = 0
        self._work = layout.HOST

    def _affordable_stride(self) -> int:
        """Of how many steps one is timed, a power of 2, so that its marks cost less than 0.3 % of the time."""
        # the median, since a process may lose its CPU within a mark
        marks_ns = _HOOK_COST * sorted(self._costs_ns)[len(self._costs_ns) // 2] * len(self._costs_ns)
        time_ns = monotonic_ns() - self._half_ns
        self._costs_ns.clear()
        stride = 1
        while marks_ns / stride > _SHARE * time_ns and stride < _MOST_STRIDE:
            stride *= 2
        return stride

    def _gap(self, following: int) -> int:
        """What the time outside all phases was, by what follows it."""
        if following == layout.DATA:
            return layout.HOST
        if following == layout.FORWARD:  # after a backward it is the next one of accumulated gradients
            return layout.BETWEEN if self._work == layout.FORWARD else layout.HOST
        return layout.BETWEEN if self._work != layout.HOST or following == layout.BACKWARD else layout.HOST

    def _mark(self, passed: int, following: int) -> None:
        self._marks += 1
        now, cpu, queued = self._clocks()
        if self._last:
            wall_ns, cpu_ns = now - self._last, cpu - self._last_cpu
            # the clocks are read one after the other: a wait between two of them is part of what follows
            waited_ns = min(queued - self._last_queued, max(0, wall_ns - cpu_ns))
            queued = self._last_queued + waited_ns
            self._wall[passed] += wall_ns
            self._cpu[passed] += cpu_ns
            self._queued[passed] += waited_ns
        self._last, self._last_cpu, self._last_queued = now, cpu, queued
        self.record.now(self.steps, self._marks, following, now)
        if self.device.active:
            self.device.mark(passed)
        if _STRIDE_AT // 2 <= self.steps < _STRIDE_AT:
            self._costs_ns.append(monotonic_ns() - now)

    def _clocks(self) -> tuple[int, int, int]:
        """Now, the CPU time of this thread, and how long it was ready without a CPU, in ns."""
        now, cpu, queued = monotonic_ns(), thread_time_ns(), self._last_queued
        # it can have waited for no longer than it was not running: mostly there is nothing to read
        if now - self._last - cpu + self._last_cpu > _LEAST_WAIT_NS and self._schedule >= 0 and not self.device.active:
            queued = int(os.pread(self._schedule, 64, 0).split()[1])
        return now, cpu, queued

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
