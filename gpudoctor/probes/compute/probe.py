"""Matrix products, memory bandwidth, bit-exactness and memory patterns on one rank's device."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import msgspec
import torch

from gpudoctor.facts.model.measured_hardware import ComputeRank, Gemm
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.compute.correctness import check_memory, fingerprints
from gpudoctor.probes.runner.merge import median_deviation
from gpudoctor.probes.runner.messages import ComputeSample
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import Stopwatch, free_bytes, give_back, power_of_two
from gpudoctor.text.units import MIB

_SEED = 30
# three such buffers are several times the largest L2 cache (126 MB on a B200): smaller ones would measure that
_SMALLEST_BUFFER = 128 * MIB
_TENSOR_CORES, _BFLOAT16 = 70, 80  # the compute capability that introduced them, times 10


class _Kind(msgspec.Struct, frozen=True):
    """One type of matrix product; `precision`: argument of torch.set_float32_matmul_precision."""

    name: str
    dtype: torch.dtype
    precision: str
    seconds: float


def run_compute(rank: Rank) -> None:
    """Measure this rank's device, all ranks at the same time, and send one ComputeSample."""
    rank.phase("prepare compute", "compute")
    gemms = tuple(_gemm(rank, kind) for kind in _kinds(rank))
    rank.phase("copies in device memory")
    copy_gb_s, triad_gb_s = _memory_rates(rank)
    give_back(rank)
    rank.phase("the same train step again and again")
    bits = fingerprints(rank)
    give_back(rank)
    rank.phase("memory patterns")
    rank.barrier()
    pattern = check_memory(rank)
    give_back(rank)
    rank.send(
        ComputeSample(
            ComputeRank(
                rank=rank.number,
                gemms=gemms,
                copy_gb_s=copy_gb_s,
                triad_gb_s=triad_gb_s,
                fingerprints=bits,
                pattern_bytes=pattern.covered_bytes,
                pattern_wrong_bytes=pattern.wrong_bytes,
                pattern_passes=pattern.passes,
                multiprocessors=torch.cuda.get_device_properties(0).multi_processor_count
                if rank.on_gpu
                else Missing("a CPU rank"),
            )
        )
    )


def _kinds(rank: Rank) -> tuple[_Kind, ...]:
    """The types that every GPU of the run supports, since all ranks must do the same; the first is the judged one."""
    if not rank.on_gpu:
        return (_Kind("fp32", torch.float32, "highest", 0.1),)
    major, minor = torch.cuda.get_device_capability()
    capability = rank.smallest(major * 10 + minor)
    half = _Kind("fp16", torch.float16, "highest", 0.5 if capability >= _BFLOAT16 else 2.0)
    if capability >= _BFLOAT16:
        bfloat16 = _Kind("bf16", torch.bfloat16, "highest", 2.0)
        return (bfloat16, half, _Kind("tf32", torch.float32, "high", 0.5))
    return (half,) if capability >= _TENSOR_CORES else (half, _Kind("fp32", torch.float32, "highest", 0.5))


def _gemm(rank: Rank, kind: _Kind) -> Gemm:
    rank.phase(f"{kind.name} matrix products")
    size = _gemm_size(rank, kind)
    generator = torch.Generator(device=rank.device).manual_seed(_SEED)
    # normally distributed, not constant: power draw, and so the clock, depends on how many bits flip
    left, right = (torch.randn(size, size, generator=generator, device=rank.device).to(kind.dtype) for _ in range(2))
    result = torch.empty_like(left)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(kind.precision)
    try:
        times_ms = _laps_ms(rank, lambda: torch.mm(left, right, out=result), kind.seconds)
    finally:
        torch.set_float32_matmul_precision(before)
    tflops = [2 * size**3 / ms / 1e9 for ms in times_ms]
    return Gemm(kind.name, size, median(tflops), median_deviation(tflops))


def _gemm_size(rank: Rank, kind: _Kind) -> int:
    """8192, or less if memory is short: drawing a matrix takes a float32 copy besides the product's three matrices."""
    if not rank.on_gpu:
        return 256
    size, free = 8192, rank.smallest(free_bytes(rank))
    while size > 1024 and size * size * (3 * kind.dtype.itemsize + 8) > free // 2:
        size //= 2
    return size


def _laps_ms(rank: Rank, work: Callable[[], object], seconds: float) -> list[float]:
    """Time of one call of `work` in ms, from batches over `seconds`, on all ranks at the same time.

    The first third is discarded: a cold GPU is faster, and an idle one has yet to raise its clocks.
    """
    work()
    batch_s, fewest = (0.05, 6) if rank.on_gpu else (0.01, 3)
    once = Stopwatch(rank)
    work()
    once_s = max(once.stop().worked_ms / 1e3, 1e-6)
    pieces = max(1, min(200, int(batch_s / once_s)))
    batches = max(fewest, int(seconds / (pieces * once_s)))
    rank.barrier()
    times_ms = []
    for _ in range(batches):
        watch = Stopwatch(rank)
        for _ in range(pieces):
            work()
        times_ms.append(watch.stop().worked_ms / pieces)
    return times_ms[len(times_ms) // 3 :]


def _memory_rates(rank: Rank) -> tuple[float | Missing, float | Missing]:
    """GB/s of a copy (one read, one write) and a triad (two reads, one write) in device memory."""
    limit = rank.smallest(free_bytes(rank)) // 5 if rank.on_gpu else 8 * MIB
    size = power_of_two(1024 * MIB, limit)
    if rank.on_gpu and size < _SMALLEST_BUFFER:
        why = Missing(f"{5 * limit // MIB} MiB of memory are free: buffers that fit would stay in its cache", "failed")
        return why, why
    try:
        source, other, target = (torch.empty(size // 4, device=rank.device).fill_(i + 1.0) for i in range(3))
    except torch.cuda.OutOfMemoryError as error:
        why = Missing(f"no memory for three buffers of {size // MIB} MiB: {error}".splitlines()[0], "failed")
        for _ in range(2):
            rank.barrier()  # the other ranks wait at the start of both measurements
        return why, why
    seconds = 0.3 if rank.on_gpu else 0.05
    copy_ms = median(_laps_ms(rank, lambda: target.copy_(source), seconds))
    triad_ms = median(_laps_ms(rank, lambda: torch.add(source, other, alpha=3.0, out=target), seconds))
    return 2 * size / copy_ms / 1e6, 3 * size / triad_ms / 1e6
