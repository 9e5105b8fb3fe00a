"""Whether a device is correct: equal work gives equal bits, and memory keeps what is written to it.

A device that computes wrong results without raising an error corrupts a training silently. The step that is repeated
needs no other rank, its data come from the CPU, and torch uses deterministic algorithms only.
"""

from __future__ import annotations

import hashlib
import time

import msgspec
import torch
from torch.nn.functional import gelu, mse_loss

from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import add_bytes, free_bytes
from gpudoctor.text.units import MIB

REPEATS = 5
_SEED = 40
_STEPS = 2  # an error in the first step spreads to the whole second step
_LEARNING_RATE = 0.05
_SHARE_OF_FREE = 0.85
_SHARE_IF_HOSTS = 0.5  # an integrated GPU (GB10): what this takes, the host's programs and page cache lack
_TIME_BOX_S = 6.0
_CPU_BYTES, _CPU_CHUNK = 64 * MIB, 16 * MIB
_LARGEST_CHUNK = 512 * MIB

# Alternating bits and their inverse, so that each cell holds both values next to neighbours of the other value
_FIVES = 0x5555_5555_5555_5555
_PATTERNS = (_FIVES, ~_FIVES, None)


class _Task(msgspec.Struct, frozen=True):
    batch: int
    inputs: int
    width: int
    dtype: torch.dtype


def fingerprints(rank: Rank) -> tuple[str, ...]:
    """SHA-256 over the outputs, losses and gradients of every step of a short train, one per repeat."""
    task = _task(rank)
    # Not a generator on the device: GPUs of different models give different numbers for one seed.
    generator = torch.Generator().manual_seed(_SEED)
    shapes = ((task.inputs, task.width), (task.width, task.width), (task.width, task.inputs))
    start = [torch.randn(shape, generator=generator) / shape[0] ** 0.5 for shape in shapes]
    data = torch.randn(task.batch, task.inputs, generator=generator)
    before = torch.get_deterministic_debug_mode()
    # as use_deterministic_algorithms(True), which would also import torch's compiler for seconds
    torch.set_deterministic_debug_mode("error")
    try:
        found = []
        for repeat in range(REPEATS):
            rank.step(repeat + 1)
            found.append(_train_once(rank, task, start, data))
    finally:
        torch.set_deterministic_debug_mode(before)
    rank.step(0)
    return tuple(found)


def _task(rank: Rank) -> _Task:
    """The task's sizes and dtype; the same on all ranks, so the GPU with the least memory decides."""
    if not rank.on_gpu:
        return _Task(128, 64, 256, torch.float32)
    small = rank.smallest(free_bytes(rank) >> 20) < 2048
    bfloat16 = bool(rank.smallest(int(torch.cuda.get_device_capability() >= (8, 0))))
    dtype = torch.bfloat16 if bfloat16 else torch.float16
    return _Task(512, 512, 1024, dtype) if small else _Task(2048, 1024, 4096, dtype)


def _train_once(rank: Rank, task: _Task, start: list[torch.Tensor], data: torch.Tensor) -> str:
    weights = [tensor.to(rank.device, task.dtype, copy=True).requires_grad_() for tensor in start]
    inputs = data.to(rank.device, task.dtype)
    digest = hashlib.sha256()
    for _ in range(_STEPS):
        hidden = inputs
        for weight in weights[:-1]:
            hidden = gelu(hidden @ weight)
        output = hidden @ weights[-1]
        loss = mse_loss(output.float(), inputs.float())
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= _LEARNING_RATE * gradient
        for tensor in (output.detach(), loss.detach(), *gradients):
            add_bytes(digest, tensor)
    if rank.injected("wrong-bits"):
        digest.update(b"wrong")
    return digest.hexdigest()


class Pattern(msgspec.Struct, frozen=True):
    """Bytes tested, bytes that came back changed (counted in each pass), and number of patterns written."""

    covered_bytes: int
    wrong_bytes: int
    passes: int


def check_memory(rank: Rank) -> Pattern:
    """Write each pattern to all allocated memory, then compare: 0x55..., 0xAA..., and each word's own number.

    After the time box no further pattern begins; the first always runs.
    """
    chunks = _chunks(rank)
    end = time.monotonic() + _TIME_BOX_S
    wrong = passes = 0
    for pattern in _PATTERNS:
        for number, chunk in enumerate(chunks):
            _fill(chunk, number, pattern)
        rank.synchronize()
        wrong += _wrong_bytes(chunks, pattern)
        passes += 1
        if time.monotonic() > end:
            break
    return Pattern(sum(chunk.nbytes for chunk in chunks), wrong, passes)


def _chunks(rank: Rank) -> list[torch.Tensor]:
    """Allocate most of the free memory, less what comparing a chunk needs; less if another process allocates it."""
    if not rank.on_gpu:
        count, size = _CPU_BYTES // _CPU_CHUNK, _CPU_CHUNK
    else:
        free = free_bytes(rank)
        size = max(MIB, min(_LARGEST_CHUNK, free // 32 // MIB * MIB))
        share = _SHARE_IF_HOSTS if torch.cuda.get_device_properties(0).is_integrated else _SHARE_OF_FREE
        count = max(1, int(free * share) // size)
    chunks: list[torch.Tensor] = []
    for _ in range(count):
        try:
            chunks.append(torch.empty(size // 8, dtype=torch.int64, device=rank.device))
        except torch.cuda.OutOfMemoryError:
            if not chunks:
                raise
            break
    return chunks


def _fill(chunk: torch.Tensor, number: int, pattern: int | None) -> None:
    """Fill a chunk with one word; None: with other words than any other chunk, so that a wrong address is visible."""
    if pattern is not None:
        chunk.fill_(pattern)
    else:
        first = number * len(chunk)
        torch.arange(first, first + len(chunk), out=chunk)


def _wrong_bytes(chunks: list[torch.Tensor], pattern: int | None) -> int:
    wrong = 0
    expected = torch.empty_like(chunks[0])
    for number, chunk in enumerate(chunks):
        _fill(expected, number, pattern)
        if not torch.equal(chunk, expected):
            wrong += int((chunk.view(torch.uint8) != expected.view(torch.uint8)).sum())
    return wrong
