"""Model, data and work of a step of the sanity train: small enough to be quick, real enough to learn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import Stopwatch

Batch = tuple[torch.Tensor, torch.Tensor]

_SEED = 20
_OUTPUTS = 16
_POOL_BATCHES = 4
_DRAWN_SAMPLES = 1 << 14  # drawing more would take seconds on one core; larger pools repeat them
_SLOW_DATA_FACTOR = 2.0  # default of slow-data: the compute time of two steps
_SLOW_DATA_LEAST_S = 0.01


class Shape(msgspec.Struct, frozen=True):
    """The size of the train for one kind of device; `target_ms`: desired compute time of a step."""

    inputs: int
    width: int
    hidden_layers: int
    target_ms: float
    batch_max: int
    learning_rate: float
    bfloat16: bool


def shape_for(rank: Rank) -> Shape:
    """A few million multiplications for a CPU rank; about 53 M parameters (210 MB of gradients) for a GPU.

    Every rank must get the same result, so the GPU with the least free memory decides.
    """
    if not rank.on_gpu:
        return Shape(128, 256, 2, target_ms=3.0, batch_max=4096, learning_rate=1e-3, bfloat16=False)
    free_gib = rank.smallest(int(torch.cuda.mem_get_info()[0]) >> 30)
    bfloat16 = bool(rank.smallest(int(torch.cuda.get_device_capability()[0] >= 8)))
    if free_gib < 12:
        return Shape(512, 2048, 3, target_ms=25.0, batch_max=2048, learning_rate=5e-4, bfloat16=bfloat16)
    # A sample takes up to 0.2 MB with its activations and the pool of 8 ranks: never more than half of the free memory.
    # 32768 samples are 10 TFLOP: 17 ms on an H100 at 0.6 PFLOP/s, 9 ms on a B200 at 1.2, about three times what
    # the host takes to enqueue a step. A larger batch would hide more of the all_reduce, not less.
    batch_max = 32768 if free_gib >= 24 else 16384
    return Shape(512, 4096, 3, target_ms=25.0, batch_max=batch_max, learning_rate=5e-4, bfloat16=bfloat16)


def build_model(shape: Shape, device: torch.device) -> nn.Module:
    """The model with the same weights on every rank."""
    torch.manual_seed(_SEED)
    layers: list[nn.Module] = [nn.Linear(shape.inputs, shape.width), nn.ReLU()]
    for _ in range(shape.hidden_layers):
        layers += [nn.Linear(shape.width, shape.width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(shape.width, _OUTPUTS)).to(device)


class Data:
    """A pool of samples labelled by a teacher, so that there is something to learn.

    Every rank generates the same pool on its own device and takes its shard by DistributedSampler.
    """

    def __init__(self, shape: Shape, batch: int, world_size: int, device: torch.device) -> None:
        self._batch = batch
        self._world_size = world_size
        # Not a generator on the device: GPUs of different models give different numbers for one seed.
        generator = torch.Generator().manual_seed(_SEED)
        teacher = torch.randn(shape.inputs, _OUTPUTS, generator=generator).to(device)
        samples = batch * world_size * _POOL_BATCHES
        drawn = torch.randn(min(samples, _DRAWN_SAMPLES), shape.inputs, generator=generator).to(device)
        inputs = drawn.repeat(-(-samples // len(drawn)), 1)[:samples]
        self._pool = TensorDataset(inputs, inputs @ teacher / shape.inputs**0.5)

    def first_batch_of(self, rank_number: int) -> Batch:
        """The first batch of any rank's shard; does not advance any iterator."""
        return next(self._epoch(rank_number, 0))

    def batches(self, rank_number: int) -> Iterator[Batch]:
        """Endless batches of one rank's shard, epoch after epoch."""
        epoch = 0
        while True:
            yield from self._epoch(rank_number, epoch)
            epoch += 1

    def ready(self, rank_number: int) -> Iterator[Batch]:
        """The batches of one epoch of a rank's shard, prepared now and repeated endlessly: next() copies nothing.

        Indexing the pool copies the sampler's indices from the host, which makes the host wait for the GPU.
        """
        return cycle(list(self._epoch(rank_number, 0)))

    def _epoch(self, rank_number: int, epoch: int) -> Iterator[Batch]:
        sampler: Any = DistributedSampler(  # annotated as yielding samples, but it yields indices
            self._pool, num_replicas=self._world_size, rank=rank_number, seed=_SEED
        )
        sampler.set_epoch(epoch)
        # Index whole batches at once: collating sample by sample would take longer than the step.
        whole_batches = BatchSampler(sampler, self._batch, drop_last=True)
        yield from map(tuple, DataLoader(self._pool, sampler=whole_batches, batch_size=None))


class Work:
    """Forward and backward on one device, slowed down if that fault is injected."""

    def __init__(self, rank: Rank, shape: Shape) -> None:
        self._rank = rank
        self._bfloat16 = shape.bfloat16
        slow, slow_data = rank.injected("slow-rank"), rank.injected("slow-data")
        self._slowness = (slow.factor or 1.0) - 1.0 if slow else 0.0
        self._data_slowness = (slow_data.factor or _SLOW_DATA_FACTOR) if slow_data else 0.0
        self._usual_s = 0.0

    def __call__(self, module: nn.Module, batch: Batch, *, with_others: bool = False) -> torch.Tensor:
        """One forward and backward; `with_others`: the backward exchanges gradients. Returns the loss."""
        if with_others:
            # Before the work: in a DDP step the other ranks do not wait for anything after the backward.
            self._slow_down(batch)
        start_ns = self._rank.clock_ns()
        with torch.autocast(batch[0].device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            loss = mse_loss(module(batch[0]).float(), batch[1])
        torch.autograd.backward(loss)
        if (self._slowness or self._data_slowness) and not with_others:
            self._rank.synchronize()
            self._usual_s = (self._rank.clock_ns() - start_ns) / 1e9
            self._slow_down(batch)
        return loss.detach()

    def delay_data(self) -> None:
        """Sleep as slow storage would, if slow-data is injected."""
        if self._data_slowness:
            time.sleep(max(_SLOW_DATA_LEAST_S, self._data_slowness * self._usual_s))

    def _slow_down(self, batch: Batch) -> None:
        end_ns = self._rank.clock_ns() + self._slowness * self._usual_s * 1e9
        while self._rank.clock_ns() < end_ns:
            if self._rank.on_gpu:
                torch.mm(batch[0].T, batch[0])
                self._rank.synchronize()


def calibrated_batch(rank: Rank, shape: Shape, model: nn.Module) -> int:
    """The batch size with which rank 0 computes for about the target time; the same on every rank."""
    work = Work(rank, shape)
    size = 256
    # A small batch does not fill a large GPU, so one trial is not enough.
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
    """All gradients of the model, concatenated to one vector."""
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
