"""Repeats the same train step: equal work on equal devices must give equal bits.

A device that computes wrong results without raising an error corrupts a training silently. The step needs no other
rank, its data come from the CPU, and torch uses deterministic algorithms only.
"""

from __future__ import annotations

import hashlib

import msgspec
import torch
from torch.nn.functional import gelu, mse_loss

from gpudoctor.probes.runner.device import add_bytes, free_bytes
from gpudoctor.probes.runner.rank import Rank

REPEATS = 5
_SEED = 40
_STEPS = 2  # an error in the first step spreads to the whole second step
_LEARNING_RATE = 0.05


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
