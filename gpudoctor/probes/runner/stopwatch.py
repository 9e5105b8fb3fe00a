"""How long work took, measured so that waiting does not count as work."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import torch

from gpudoctor.probes.runner.rank import Rank


class Lap(msgspec.Struct, frozen=True):
    """Milliseconds of work on the device, until the host had given all work out, and until it was done.

    A GPU works from beginning to end. A CPU rank works while it has a core: what the machine
    gives to others meanwhile is no slowness of the rank.
    """

    worked_ms: float
    host_ms: float
    passed_ms: float


class Stopwatch:
    """Time of work on the device: CUDA events on a GPU, the thread's CPU time on a CPU."""

    def __init__(self, rank: Rank) -> None:
        self._events: tuple[Any, Any] | None = None
        if rank.on_gpu:
            cuda: Any = torch.cuda  # not annotated everywhere
            self._events = (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True))
            self._events[0].record()
        self._start_cpu_ns = time.thread_time_ns()
        self._start_ns = time.monotonic_ns()

    def stop(self) -> Lap:
        host_ms = ms_since(self._start_ns)
        if self._events is None:
            return Lap((time.thread_time_ns() - self._start_cpu_ns) / 1e6, host_ms, host_ms)
        start, end = self._events
        end.record()
        end.synchronize()
        device_ms = float(start.elapsed_time(end))
        return Lap(device_ms, host_ms, device_ms)


def ms_since(start_ns: int) -> float:
    return (time.monotonic_ns() - start_ns) / 1e6
