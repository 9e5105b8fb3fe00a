"""This rank's device: memory a probe may use on it, and the time that work on it takes."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import time
from itertools import pairwise
from typing import Any

import msgspec
import torch

from gpudoctor.probes.runner.rank import Rank

_cuda: Any = torch.cuda  # not annotated everywhere


def free_bytes(rank: Rank) -> int:
    """Free memory of this rank's GPU, after torch has released its cached blocks."""
    give_back(rank)
    return int(torch.cuda.mem_get_info()[0])


def give_back(rank: Rank) -> None:
    """Return torch's cached memory to the GPU, for the next probe or another rank."""
    gc.collect()
    if rank.on_gpu:
        torch.cuda.empty_cache()


def out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out: torch has an exception class for a GPU, but only a text for pinned memory."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error).lower()


def power_of_two(limit: int, share_of: int) -> int:
    """The largest power of two within `share_of` and `limit`; at least 1.

    >>> power_of_two(256, 100), power_of_two(64, 1000)
    (64, 64)
    """
    return 1 << (max(1, min(limit, share_of)).bit_length() - 1)


def numbered(count: int, seed: int, device: torch.device) -> torch.Tensor:
    """An int32 pattern, equal on every device: each element identifies its position and, by `seed`, its sender."""
    # an odd factor, so that no two positions within 2^32 are equal; the product wraps as two's complement does
    return torch.arange(count, dtype=torch.int32, device=device) * 0x61C88647 + seed


class Lap(msgspec.Struct, frozen=True):
    """Milliseconds the device worked, until the host had enqueued everything, and until all was done.

    A GPU works from beginning to end. A CPU rank works only while it has a core: time that other
    processes had the core is not slowness of the rank.
    """

    worked_ms: float
    host_ms: float
    passed_ms: float


class Stopwatch:
    """Time of work on the device: CUDA events on a GPU, the thread's CPU time on a CPU."""

    def __init__(self, rank: Rank) -> None:
        self._events: tuple[Any, Any] | None = None
        if rank.on_gpu:
            self._events = (timing_event(), timing_event())
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
    """Milliseconds since a reading of CLOCK_MONOTONIC."""
    return (time.monotonic_ns() - start_ns) / 1e6


def add_bytes(digest: hashlib._Hash, tensor: torch.Tensor) -> None:
    """Add a tensor's bytes, read from memory: torch exposes them only through numpy, which may be missing."""
    values = tensor.cpu().contiguous()
    digest.update((ctypes.c_char * values.nbytes).from_address(values.data_ptr()))


def timing_event() -> Any:
    """A CUDA event that records its time."""
    return _cuda.Event(enable_timing=True)


def copies_ms(target: torch.Tensor, source: torch.Tensor, copies: int) -> list[float]:
    """Time of each of `copies` copies in ms, all enqueued at once with an event between any two."""
    marks = [timing_event() for _ in range(copies + 1)]
    marks[0].record()
    for mark in marks[1:]:
        target.copy_(source, non_blocking=True)
        mark.record()
    marks[-1].synchronize()
    return [start.elapsed_time(end) for start, end in pairwise(marks)]
