"""The work of one train step on one device, and how much of it fits the time aimed at."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn
from torch.nn.functional import mse_loss

from gpudoctor.probes.runner.device import Stopwatch
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.train.sanity_model import Batch, Data, Shape

_SLOW_DATA_FACTOR = 2.0  # where the injection says none: as long as two steps compute
_SLOW_DATA_LEAST_S = 0.01


class Work:
    """Forward and backward on one device, with the slowness that was asked for."""

    def __init__(self, rank: Rank, shape: Shape) -> None:
        self._rank = rank
        self._bfloat16 = shape.bfloat16
        slow, slow_data = rank.injected("slow-rank"), rank.injected("slow-data")
        self._slowness = (slow.factor or 1.0) - 1.0 if slow else 0.0
        self._data_slowness = (slow_data.factor or _SLOW_DATA_FACTOR) if slow_data else 0.0
        self._usual_s = 0.0

    def __call__(self, module: nn.Module, batch: Batch, *, with_others: bool = False) -> torch.Tensor:
        """One forward and backward; `with_others` where the backward exchanges gradients."""
        if with_others:
            # Before the work: in a real step the others do not wait for what comes after the backward.
            self._dawdle(batch)
        start_ns = self._rank.clock_ns()
        with torch.autocast(batch[0].device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            loss = mse_loss(module(batch[0]).float(), batch[1])
        torch.autograd.backward(loss)
        if (self._slowness or self._data_slowness) and not with_others:
            self._rank.synchronize()
            self._usual_s = (self._rank.clock_ns() - start_ns) / 1e9
            self._dawdle(batch)
        return loss.detach()

    def delay_data(self) -> None:
        """Play slow storage, where that was asked for."""
        if self._data_slowness:
            time.sleep(max(_SLOW_DATA_LEAST_S, self._data_slowness * self._usual_s))

    def _dawdle(self, batch: Batch) -> None:
        end_ns = self._rank.clock_ns() + self._slowness * self._usual_s * 1e9
        while self._rank.clock_ns() < end_ns:
            if self._rank.on_gpu:
                torch.mm(batch[0].T, batch[0])
                self._rank.synchronize()


def calibrated_batch(rank: Rank, shape: Shape, model: nn.Module) -> int:
    """The batch with which rank 0 computes for about the target time; the same on every rank."""
    work = Work(rank, shape)
    size = 256
    # A small batch does not fill a large GPU, so that one trial would say too little.
    for _ in range(3):
        batch = Data(shape, size, 1, rank.device).first_batch_of(0)
        times_ms = []
        for _ in range(5):
            clock = Stopwatch(rank)
            work(model, batch)
            times_ms.append(clock.stop().worked_ms)
        found_ms = statistics.median(times_ms[2:])
        if 0.8 <= found_ms / shape.target_ms <= 1.25:
            break
        size = max(32, min(shape.batch_max, 32 * round(size * shape.target_ms / found_ms / 32)))
    return rank.from_rank_zero(size)


def flat_gradient(model: nn.Module) -> torch.Tensor:
    """All gradients of the model, one after the other."""
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
