"""Plain benchmark loops, as anyone would write them with torch, for comparison with the probes' figures.

Runs in a separate process of the acceptance run; `main` gets the order as JSON. It deliberately shares no code with
the probes, so that it cannot repeat their mistakes. torch is imported in that process only.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

LOOPS = __name__
NOTHING_TO_RUN_ON = 3  # exit code if there is no torch or it sees too few GPUs; all other codes are failures
_BATCH_S = 0.05
_WARM_UP, _TIMED = 4, 16
_LOAD_SIZE = 4096
_COPY_BYTES = 1 << 30
_CPU_COPY_BYTES = 8 << 20


class LoadOrder(msgspec.Struct, frozen=True, tag="load"):
    """Endless matrix products on these GPUs (none: on one CPU thread), until stdin ends."""

    uuids: tuple[str, ...]


class TrainOrder(msgspec.Struct, frozen=True, tag="train"):
    """Train on one GPU (none: the CPU) until stdin ends, then write `StepTimes` to the file."""

    uuids: tuple[str, ...]
    file: str


class StepTimes(msgspec.Struct, frozen=True):
    """When each step of a training began (CLOCK_MONOTONIC) and how long it took, in seconds."""

    began_s: tuple[float, ...]
    took_s: tuple[float, ...]


class HostCopies(msgspec.Struct, frozen=True):
    """Pinned copies of `size_bytes` to and from one GPU, from these CPUs (none: any)."""

    gpu: int
    size_bytes: int
    cpus: tuple[int, ...] = ()


class LoopOrder(msgspec.Struct, frozen=True, tag="loops"):
    """Measure these GPUs (none: the CPU): square products of `size`, copies in device memory, host copies.

    `gpu` of the host copies is an index into `uuids`.
    """

    uuids: tuple[str, ...]
    dtype: str
    size: int
    seconds: float
    host: tuple[HostCopies, ...] = ()


class PlainFigures(msgspec.Struct, frozen=True):
    """Medians of what the loops measured, in the order of `uuids`."""

    gemm_tflops: tuple[float, ...]
    copy_gb_s: tuple[float, ...]
    triad_gb_s: tuple[float, ...] = ()
    h2d_gb_s: tuple[float, ...] = ()
    d2h_gb_s: tuple[float, ...] = ()


def main(argument: str) -> None:
    """Execute the order; prints figures as JSON. Exits with 3 if there is no torch or no GPU to use."""
    order = msgspec.json.decode(argument, type=LoadOrder | LoopOrder | TrainOrder)
    if order.uuids:  # before CUDA starts, so that torch's device i is uuids[i]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(order.uuids)
    try:
        import torch
    except ImportError as error:
        sys.exit(_refused(f"torch does not load: {error}"))
    if torch.cuda.device_count() < len(order.uuids):
        sys.exit(_refused(f"torch sees {torch.cuda.device_count()} of {len(order.uuids)} GPUs"))
    devices = [torch.device("cuda", place) for place in range(len(order.uuids))]
    if isinstance(order, LoadOrder):
        _load(torch, devices)
        return
    if isinstance(order, TrainOrder):
        _train(torch, devices[0] if devices else torch.device("cpu"), order.file)
        return
    sys.stdout.buffer.write(msgspec.json.encode(_figures(torch, devices, order)))


def _refused(why: str) -> int:
    sys.stderr.write(f"{why}\n")
    return NOTHING_TO_RUN_ON


def _load(torch: Any, devices: list[Any]) -> None:
    torch.set_num_threads(1)
    size, dtype = (_LOAD_SIZE, torch.float16) if devices else (256, torch.float32)
    matrices = [torch.randn(size, size, device=device, dtype=dtype) for device in devices or [torch.device("cpu")]]
    results = [torch.empty_like(matrix) for matrix in matrices]
    said = False
    while not _asked_to_end():
        for matrix, result in zip(matrices, results, strict=True):
            for _ in range(20):
                torch.mm(matrix, matrix, out=result)
        for device in devices:
            torch.cuda.synchronize(device)
        if not said:
            _say_running()
            said = True


def _asked_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _say_running() -> None:
    sys.stdout.write("running\n")
    sys.stdout.flush()


def _train(torch: Any, device: Any, file: str) -> None:
    """Steps of a small model, each waited for: what a user's training loop that reads its loss does."""
    torch.set_num_threads(1)
    width, batch = (4096, 2048) if device.type == "cuda" else (64, 32)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(batch, width, device=device)
    began_s: list[float] = []
    took_s: list[float] = []
    while not _asked_to_end():
        began = time.monotonic()
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        float(loss)
        began_s.append(round(began, 4))
        took_s.append(round(time.monotonic() - began, 7))
        if len(took_s) == _WARM_UP:
            _say_running()
    Path(file).write_bytes(msgspec.json.encode(StepTimes(tuple(began_s), tuple(took_s))))


def _figures(torch: Any, devices: list[Any], order: LoopOrder) -> PlainFigures:
    gemm = _gemm(torch, devices, order)
    copies, triads = _memory(torch, devices, order.seconds / 4)
    h2d, d2h, held = [], [], []
    for host in order.host:
        pinned = _pinned(torch, host)
        held.append(pinned)  # once freed, torch would reuse it for the next GPU, which may be near another socket
        there = torch.empty_like(pinned, device=devices[host.gpu])
        h2d.append(_copied(torch, there, pinned, devices[host.gpu]))
        d2h.append(_copied(torch, pinned, there, devices[host.gpu]))
    return PlainFigures(tuple(gemm), tuple(copies), tuple(triads), tuple(h2d), tuple(d2h))


def _gemm(torch: Any, devices: list[Any], order: LoopOrder) -> list[float]:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(order.dtype, torch.float32)
    left, right, result = [], [], []
    for device in devices or [torch.device("cpu")]:
        left.append(torch.randn(order.size, order.size, device=device).to(dtype))
        right.append(torch.randn(order.size, order.size, device=device).to(dtype))
        result.append(torch.empty_like(left[-1]))
    times_s = _timed(torch, devices, lambda at: torch.mm(left[at], right[at], out=result[at]), order.seconds)
    return [2 * order.size**3 / each / 1e12 for each in times_s]


def _memory(torch: Any, devices: list[Any], seconds: float) -> tuple[list[float], list[float]]:
    """GB/s of a copy (one read, one write) and of a triad (two reads, one write)."""
    sources, others, targets = [], [], []
    for device in devices or [torch.device("cpu")]:
        size = _CPU_COPY_BYTES
        if devices:
            size = min(_COPY_BYTES, torch.cuda.mem_get_info(device)[0] // 5)
        sources.append(torch.ones(size // 4, device=device))
        others.append(torch.ones_like(sources[-1]))
        targets.append(torch.empty_like(sources[-1]))
    copy_s = _timed(torch, devices, lambda at: targets[at].copy_(sources[at]), seconds)
    triad_s = _timed(torch, devices, lambda at: torch.add(sources[at], others[at], alpha=3.0, out=targets[at]), seconds)
    sizes = [source.nbytes for source in sources]
    copies = [2 * size / each / 1e9 for size, each in zip(sizes, copy_s, strict=True)]
    return copies, [3 * size / each / 1e9 for size, each in zip(sizes, triad_s, strict=True)]


def _timed(torch: Any, devices: list[Any], work: Callable[[int], object], seconds: float) -> list[float]:
    """Seconds per call of `work` on each device, all at the same time; the first third only warms up."""
    if not devices:
        began = time.perf_counter()
        for _ in range(10):
            work(0)
        return [(time.perf_counter() - began) / 10]
    for at in range(len(devices)):
        work(at)
        torch.cuda.synchronize(at)
    began = time.perf_counter()
    work(0)
    torch.cuda.synchronize(0)
    pieces = max(1, int(_BATCH_S / (time.perf_counter() - began)))
    laps: list[list[float]] = [[] for _ in devices]
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(laps[0]) < 6:
        events = []
        for at, device in enumerate(devices):
            with torch.cuda.device(device):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                for _ in range(pieces):
                    work(at)
                end.record()
                events.append((start, end))
        for at, (start, end) in enumerate(events):
            end.synchronize()
            laps[at].append(start.elapsed_time(end) / 1e3 / pieces)
    return [median(each[len(each) // 3 :]) for each in laps]


def _pinned(torch: Any, host: HostCopies) -> Any:
    """Pinned memory allocated on the order's CPUs."""
    allowed = os.sched_getaffinity(0)
    if near := allowed & set(host.cpus):
        os.sched_setaffinity(0, near)
    try:
        return torch.ones(host.size_bytes // 4, dtype=torch.int32).pin_memory()
    finally:
        os.sched_setaffinity(0, allowed)


def _copied(torch: Any, target: Any, source: Any, device: Any) -> float:
    """Median GB/s of single copies."""
    times_s = []
    with torch.cuda.device(device):
        for lap in range(_WARM_UP + _TIMED):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            target.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            if lap >= _WARM_UP:
                times_s.append(start.elapsed_time(end) / 1e3)
    return float(source.nbytes / median(times_s) / 1e9)
