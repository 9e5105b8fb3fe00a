"""Train steps in DDP: measured one by one, or plain and back to back.

In DDP every rank takes as long as the slowest, so step times cannot identify it. Each measured step
therefore has three parts: A, forward and backward without communication; B, one all_reduce of the
gradients with a time stamp of each rank's entry; C, the real DDP step.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from gpudoctor.probes.runner.messages import StepBlock
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import Stopwatch, ms_since
from gpudoctor.probes.train.sanity_model import Data, Shape, Work, flat_gradient

BLOCKS = 2
STEPS_PER_BLOCK = 15
DEFAULT_BUCKET_MB = 25  # DDP's own
_CHECKED_SAMPLES = 256
_FAULT_STEP = 5


class Train:
    """The model in DDP with its optimizer, and this rank's shard of the data."""

    def __init__(
        self, rank: Rank, shape: Shape, model: nn.Module, data: Data, bucket_mb: float = DEFAULT_BUCKET_MB
    ) -> None:
        self.losses: list[torch.Tensor] = []
        self._rank = rank
        self._work = Work(rank, shape)
        self._data = data
        self._batches = data.batches(rank.number)
        self._model = model
        with rank.blocked():
            self._ddp = DistributedDataParallel(model, device_ids=[0] if rank.on_gpu else None, bucket_cap_mb=bucket_mb)
        self._optimizer = torch.optim.Adam(model.parameters(), lr=shape.learning_rate)
        self._step = 0
        # in the second block of measured steps
        self._nan_at = 3 + STEPS_PER_BLOCK if rank.injected("nan") else -1

    def compare_gradient(self, reference: nn.Module) -> float | None:
        """Relative difference of DDP's first gradient from that of one big batch; None on all ranks but 0.

        The gradient of the big batch is the mean over all ranks' shards, computed one after the other.
        """
        inputs, targets = self._data.first_batch_of(self._rank.number)
        with self._rank.blocked():
            torch.autograd.backward(mse_loss(self._ddp(inputs[:_CHECKED_SAMPLES]), targets[:_CHECKED_SAMPLES]))
            self._rank.synchronize()
        error = None
        if self._rank.number == 0:
            for number in range(self._rank.world_size):
                inputs, targets = self._data.first_batch_of(number)
                loss = mse_loss(reference(inputs[:_CHECKED_SAMPLES]), targets[:_CHECKED_SAMPLES])
                torch.autograd.backward(loss / self._rank.world_size)
            expected, found = flat_gradient(reference), flat_gradient(self._model)
            error = float((found - expected).norm() / expected.norm())
        self._optimizer.zero_grad()
        return error

    def block(self, steps: int) -> StepBlock:
        rows = []
        gc.disable()  # garbage collection in one rank would look like a slow rank
        try:
            for _ in range(steps):
                self._rank.step(self._step + 1)
                rows.append(self._measured_step())
        finally:
            gc.enable()
        return StepBlock(**{figure: tuple(row[figure] for row in rows) for figure in rows[0]})

    def compute_ms(self, steps: int, *, with_others: bool = True) -> list[float]:
        """Times in ms of part A alone, repeated `steps` times; `with_others`: all ranks begin each step together."""
        batch = next(self._batches)
        found = []
        gc.disable()
        try:
            for _ in range(steps):
                if with_others:
                    self._rank.barrier()
                clock = Stopwatch(self._rank)
                with self._ddp.no_sync():
                    self._work(self._ddp, batch)
                found.append(clock.stop().worked_ms)
                self._optimizer.zero_grad()
        finally:
            gc.enable()
        return found

    def steady_step_ms(self, steps: int) -> float:
        """Mean time in ms of plain DDP steps back to back, with optimizer, on batches already on the device."""
        batches = self._data.ready(self._rank.number)
        self._rank.synchronize()
        self._rank.barrier()
        start_ns = time.monotonic_ns()
        with self._rank.blocked():
            for _ in range(steps):
                self._work.delay_data()
                self.losses.append(self._work(self._ddp, next(batches), with_others=True))
                self._optimizer.step()
                self._optimizer.zero_grad()
            self._rank.synchronize()
        return ms_since(start_ns) / steps

    def solo_compute_ms(self, steps: int) -> float:
        """Median time in ms of part A on this rank while the others wait on the CPU; each rank in turn."""
        found_ms = 0.0
        for number in range(self._rank.world_size):
            self._rank.barrier()
            if number == self._rank.number:
                found_ms = statistics.median(self.compute_ms(3 + steps, with_others=False)[3:])
        self._rank.barrier()
        return found_ms

    def inject_desync(self) -> None:
        """Change one weight of this rank, if desync is injected."""
        if self._rank.injected("desync"):
            with torch.no_grad():
                next(self._model.parameters()).view(-1)[0] += 1e-3

    def _measured_step(self) -> dict[str, Any]:
        """One step; its figures by the names of `StepBlock`."""
        rank = self._rank
        if self._step == _FAULT_STEP:
            rank.fail_if_injected("train")
        fetched = time.monotonic_ns()
        batch = next(self._batches)
        self._work.delay_data()
        rank.synchronize()
        data_ms = ms_since(fetched)

        rank.barrier()
        clock = Stopwatch(rank)
        with self._ddp.no_sync():
            self._work(self._ddp, batch)
        alone = clock.stop()
        gradient = flat_gradient(self._model)
        rank.synchronize()
        self._optimizer.zero_grad()

        arrived_ns = time.monotonic_ns()
        with rank.blocked():
            dist.all_reduce(gradient)
            rank.synchronize()
        left_ns = time.monotonic_ns()

        if self._step == self._nan_at:
            batch = (batch[0] * math.nan, batch[1])
        rank.barrier()
        clock = Stopwatch(rank)
        with rank.blocked():
            self.losses.append(self._work(self._ddp, batch, with_others=True))
            self._optimizer.step()
            whole = clock.stop()
        self._optimizer.zero_grad()
        self._step += 1
        computed = {"compute_ms": alone.worked_ms, "host_ms": alone.host_ms, "data_ms": data_ms}
        return {**computed, "arrived_ns": arrived_ns, "left_ns": left_ns, "step_ms": whole.passed_ms}


def solo_step_ms(rank: Rank, shape: Shape, model: nn.Module, data: Data, steps: int) -> float:
    """Mean time in ms of the plain step on rank 0 alone, while the others wait on the CPU; 0 on all other ranks."""
    rank.barrier()
    step_ms = 0.0
    if rank.number == 0:
        work, batches = Work(rank, shape), data.ready(0)
        optimizer = torch.optim.Adam(model.parameters(), lr=shape.learning_rate)
        for step in range(-3, steps):
            if step == 0:
                rank.synchronize()
                start_ns = time.monotonic_ns()
            work(model, next(batches))
            optimizer.step()
            optimizer.zero_grad()
        rank.synchronize()
        step_ms = ms_since(start_ns) / steps
    rank.barrier()
    return step_ms
