"""The DDP sanity train: a short real train, measured so that a slow rank can be named.

In DDP every rank takes as long as the slowest, so that step time names nobody. Each measured step
therefore has three parts: A, forward and backward without communication; B, one all_reduce of the
gradients whose entry each rank stamps; C, the real DDP step.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import hashlib
import math
import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from gpudoctor.probes.collectives import contributions_to_the_sum
from gpudoctor.probes.messages import Block, TrainSample
from gpudoctor.probes.rank import Rank
from gpudoctor.probes.sanity_model import Batch, Data, Shape, build_model, shape_for
from gpudoctor.probes.stopwatch import Stopwatch, ms_since

BLOCKS = 2
STEPS_PER_BLOCK = 15
_STEPS_PER_BLOCK_CPU = 25  # shorter steps, and more of them: the median must outlast other processes
_SOLO_STEPS = 10
_CHECKED_SAMPLES = 256


def run_training(rank: Rank) -> None:
    """Train, and send one TrainSample."""
    rank.phase("prepare train", "train")
    shape = shape_for(rank)
    contributions = contributions_to_the_sum(rank)
    model = build_model(shape, rank.device)
    alone = copy.deepcopy(model)
    batch = _calibrated_batch(rank, shape, copy.deepcopy(model))
    data = Data(shape, batch, rank.world_size, rank.device)
    train = _Train(rank, shape, model, data)
    gradient_error = train.compare_gradient(copy.deepcopy(alone))
    rank.phase("train step")
    if rank.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    train.block(8 if rank.on_gpu else 3)  # warm-up: DDP rebuilds its buckets, libraries set themselves up
    steps = STEPS_PER_BLOCK if rank.on_gpu else _STEPS_PER_BLOCK_CPU
    blocks = tuple(train.block(steps) for _ in range(BLOCKS))
    # Read before rank 0 works alone: its peak would be higher than the others'.
    memory_peak_mib = torch.cuda.max_memory_allocated() / 2**20 if rank.on_gpu else None
    train.end()
    rank.phase("train alone")
    solo_step_ms = _solo_step_ms(rank, shape, alone, data)
    parameters = list(model.parameters())
    rank.send(
        TrainSample(
            batch_per_rank=batch,
            parameters=sum(p.numel() for p in parameters),
            gradient_bytes=sum(p.numel() * p.element_size() for p in parameters),
            blocks=blocks,
            losses=tuple(_finite(loss) for loss in train.losses),
            weights_sha256=_sha256(parameters),
            contribution_ok=None if contributions is None else contributions.ok,
            gradient_error=gradient_error,
            solo_step_ms=solo_step_ms,
            memory_peak_mib=memory_peak_mib,
        )
    )


class _Work:
    """Forward and backward on one device, with the slowness that was asked for."""

    def __init__(self, rank: Rank, shape: Shape) -> None:
        self._rank = rank
        self._bfloat16 = shape.bfloat16
        slow = rank.injected("slow-rank")
        self._slowness = (slow.factor or 1.0) - 1.0 if slow else 0.0
        self._usual_s = 0.0

    def __call__(self, module: nn.Module, batch: Batch, *, with_others: bool = False) -> torch.Tensor:
        """One forward and backward; `with_others` where the backward exchanges gradients."""
        self._dawdle(batch)
        start_ns = self._rank.clock_ns()
        with torch.autocast(self._rank.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            loss = mse_loss(module(batch[0]).float(), batch[1])
        torch.autograd.backward(loss)
        if self._slowness and not with_others:
            self._rank.synchronize()
            self._usual_s = (self._rank.clock_ns() - start_ns) / 1e9
        return loss.detach()

    def _dawdle(self, batch: Batch) -> None:
        """Be busy before the work, not after it: in a real step the others would not wait for what comes after."""
        end_ns = self._rank.clock_ns() + self._slowness * self._usual_s * 1e9
        while self._rank.clock_ns() < end_ns:
            if self._rank.on_gpu:
                torch.mm(batch[0].T, batch[0])
                self._rank.synchronize()


class _Train:
    """The model in DDP, and its measured steps."""

    def __init__(self, rank: Rank, shape: Shape, model: nn.Module, data: Data) -> None:
        self.losses: list[torch.Tensor] = []
        self._rank = rank
        self._work = _Work(rank, shape)
        self._data = data
        self._batches = data.batches(rank.number)
        self._model = model
        with rank.blocked():
            self._ddp = DistributedDataParallel(model, device_ids=[0] if rank.on_gpu else None)
        self._optimizer = torch.optim.Adam(model.parameters(), lr=shape.learning_rate)
        self._step = 0
        # DDP runs its all_reduce inside backward: the injected NaN comes in the middle of the train.
        self._nan_at = 3 + STEPS_PER_BLOCK if rank.injected("nan") else -1

    def compare_gradient(self, reference: nn.Module) -> float | None:
        """Relative difference of DDP's first gradient from that of one big batch; rank 0 only.

        The mean over all ranks' shards, one after the other, is the gradient of the big batch.
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
            expected, found = _flat_gradient(reference), _flat_gradient(self._model)
            error = float((found - expected).norm() / expected.norm())
        self._optimizer.zero_grad()
        return error

    def block(self, steps: int) -> Block:
        """Run `steps` steps and return their figures."""
        rows = []
        gc.disable()  # a collection in one rank would look like a slow rank
        try:
            for _ in range(steps):
                self._rank.step(self._step + 1)
                rows.append(self._measured_step())
        finally:
            gc.enable()
        columns = list(zip(*rows, strict=True))
        return Block(
            compute_ms=columns[0],
            host_ms=columns[1],
            data_ms=columns[2],
            arrived_ns=columns[3],
            left_ns=columns[4],
            step_ms=columns[5],
        )

    def end(self) -> None:
        """Bring on the desync that was asked for."""
        if self._rank.injected("desync"):
            with torch.no_grad():
                next(self._model.parameters()).view(-1)[0] += 1e-3

    def _measured_step(self) -> tuple[float, float, float, int, int, float]:
        rank = self._rank
        if self._step == 5:
            rank.stumble("train")
        fetched = time.monotonic_ns()
        batch = next(self._batches)
        rank.synchronize()
        data_ms = ms_since(fetched)

        rank.barrier()
        clock = Stopwatch(rank)
        with self._ddp.no_sync():
            self._work(self._ddp, batch)
        alone = clock.stop()
        gradient = _flat_gradient(self._model)
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
        return alone.worked_ms, alone.host_ms, data_ms, arrived_ns, left_ns, whole.passed_ms


def _calibrated_batch(rank: Rank, shape: Shape, model: nn.Module) -> int:
    """The batch with which rank 0 computes for about the target time; the same on every rank."""
    work = _Work(rank, shape)
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


def _solo_step_ms(rank: Rank, shape: Shape, model: nn.Module, data: Data) -> float | None:
    """The same step on rank 0 alone, while the others wait on the CPU; None on those."""
    rank.barrier()
    step_ms = None
    if rank.number == 0:
        optimizer = torch.optim.Adam(model.parameters(), lr=shape.learning_rate)
        step_ms = statistics.median(list(_steps_alone(rank, _Work(rank, shape), model, optimizer, data))[3:])
    rank.barrier()
    return step_ms


def _steps_alone(
    rank: Rank, work: _Work, model: nn.Module, optimizer: torch.optim.Optimizer, data: Data
) -> Iterator[float]:
    batches = data.batches(0)
    for _ in range(3 + _SOLO_STEPS):
        batch = next(batches)
        rank.synchronize()
        clock = Stopwatch(rank)
        work(model, batch)
        optimizer.step()
        yield clock.stop().passed_ms
        optimizer.zero_grad()


def _flat_gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def _sha256(parameters: list[nn.Parameter]) -> str:
    digest = hashlib.sha256()
    for parameter in parameters:
        values = parameter.detach().cpu().contiguous()
        # Straight from memory: torch gives out bytes only through numpy, which may be missing.
        digest.update((ctypes.c_char * (values.numel() * values.element_size())).from_address(values.data_ptr()))
    return digest.hexdigest()


def _finite(loss: torch.Tensor) -> float | None:
    value = float(loss)
    return value if math.isfinite(value) else None
