"""Plan verification on one rank: a few steps of the strategy, the memory of its tensors and the step time."""

from __future__ import annotations

import functools
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from gpudoctor.probes.plan_verification.messages import VerificationFigures, VerificationOrder
from gpudoctor.probes.plan_verification.split import DTYPES, Built, RankPosition, stored_bytes
from gpudoctor.probes.runner.merge import finite
from gpudoctor.probes.runner.messages import VerificationSample
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import Stopwatch
from gpudoctor.probes.strategies.memory import LiveBytes, optimizer_tensors
from gpudoctor.probes.strategies.pipeline_steps import SendRecvPipeline
from gpudoctor.probes.strategies.transformer import loss_of

_SETTLED = 2  # steps until the optimizer states exist and DDP has ordered its buckets
_PRODUCTS = 8
_EXCHANGES = 4
_LARGEST_EXCHANGE_BYTES = 256 << 20
_SEED = 53


def run_verification(rank: Rank, order: VerificationOrder) -> None:
    """Train as ordered, and send one VerificationSample.

    The first two steps warm up, memory is counted in the third (counting takes time), and the rest are timed.
    Gradients of a tied embedding are not exchanged between the first and the last stage: the verification is about
    cost, not about learning.
    """
    rank.phase("measure products")
    gflops = _gflops(rank, order)
    with rank.blocked():
        exchange = _all_reduce_gb_s(rank, order)
        position = RankPosition(rank, order)
    with _loss_parallel(order):
        figures = _measured(rank, order, position)
    rank.send(VerificationSample(msgspec.structs.replace(figures, gflops=gflops, allreduce_gb_s=exchange)))


def _measured(rank: Rank, order: VerificationOrder, position: RankPosition) -> VerificationFigures:
    """Memory and times of the training, without `gflops` and `allreduce_gb_s`."""
    rank.phase("build the model")
    at_first = torch.cuda.memory_allocated() if rank.on_gpu else 0
    live = None if rank.on_gpu else LiveBytes()
    counting: AbstractContextManager[Any] = nullcontext() if live is None else live
    with rank.blocked(), counting:
        built = Built(rank, order, position)
        train = _Train(rank, order, position, built)
        rank.phase("train step")
        for _ in range(_SETTLED):
            train.step()
        if live is None:
            torch.cuda.reset_peak_memory_stats()
        else:
            live.peak_bytes = live.now_bytes
        gradients = train.step()
        peak = torch.cuda.max_memory_allocated() - at_first if live is None else live.peak_bytes
    times = []
    for _ in range(order.steps):
        rank.barrier()
        began = time.monotonic()
        with rank.blocked():
            train.step()
            rank.synchronize()
        times.append(time.monotonic() - began)
    parameters = list(built.inner.parameters())
    return VerificationFigures(
        parameters=sum(p.numel() for p in parameters),
        weights_bytes=stored_bytes(iter(parameters)),
        gradients_bytes=gradients,
        optimizer_bytes=stored_bytes(optimizer_tensors(built.optimizer)),
        peak_bytes=peak,
        step_s=tuple(times),
        losses=tuple(train.losses),
    )


def _loss_parallel(order: VerificationOrder) -> AbstractContextManager[Any]:
    if order.tensor == 1:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    parallel: AbstractContextManager[Any] = loss_parallel()
    return parallel


class _Train:
    """Steps on the same random tokens."""

    def __init__(self, rank: Rank, order: VerificationOrder, position: RankPosition, built: Built) -> None:
        self._order, self._position, self._built = order, position, built
        self.losses: list[float | None] = []
        generator = torch.Generator().manual_seed(_SEED + position.data_number)
        sizes = (order.micro_batches * order.micro_batch, order.seq)
        self._tokens = torch.randint(order.model.vocab, sizes, generator=generator).to(rank.device)
        self._targets = (3 * self._tokens + 1) % order.model.vocab
        self._pipeline = SendRecvPipeline(
            position.stages,
            built.model,
            "1f1b",
            order.micro_batches,
            functools.partial(loss_of, tp=position.tp),
            (order.seq // order.tensor, order.model.hidden),
            dtype=DTYPES[order.precision],
            forward_context=built.forward_context,
        )

    def step(self) -> int:
        """Take one optimizer step; returns the bytes of all gradients at the end of the backward pass."""
        self._built.zero_grad()
        mean_loss = self._pipeline(self._tokens, self._targets)
        if mean_loss is not None:
            self.losses.append(finite(float(mean_loss)))
        self._exchange()
        gradients = stored_bytes(p.grad for p in self._built.inner.parameters())
        self._built.optimizer.step()
        return gradients

    def _exchange(self) -> None:
        """Average gradients over data-parallel ranks, and sum those that sequence parallelism has divided."""
        built, order = self._built, self._order
        parameters = list(built.inner.parameters())
        if built.by_hand:
            for parameter in parameters:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad.div_(order.data), group=self._position.data_group)
        if order.tensor > 1:
            for parameter in built.inner.whole_on_each_rank():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self._position.tp.group)


def _gflops(rank: Rank, order: VerificationOrder) -> float:
    """Speed of products of the sizes of the model's layers, while every rank does the same; in 1e9 FLOP/s."""
    model, tokens = order.model, order.micro_batch * order.seq
    width = max(model.ffn // order.tensor, 1)
    # not ones: products of equal numbers draw less power, and a GPU at its power limit is then faster than it trains
    left = torch.randn(tokens, model.hidden, device=rank.device).to(DTYPES[order.precision])
    right = torch.randn(model.hidden, width, device=rank.device).to(DTYPES[order.precision])
    left @ right
    rank.synchronize()
    rank.barrier()
    watch = Stopwatch(rank)
    for _ in range(_PRODUCTS):
        left @ right
    return _PRODUCTS * 2 * tokens * model.hidden * width / watch.stop().passed_ms / 1e6


def _all_reduce_gb_s(rank: Rank, order: VerificationOrder) -> float | None:
    """Bus bandwidth of an all_reduce over all ranks of the gradients' size, in 1e9 bytes/s; None on one rank.

    As in nccl-tests, 2 (n-1)/n of the bytes count.
    """
    n = rank.world_size
    if n == 1:
        return None
    model = order.model
    count = model.layers * model.hidden * (2 * model.hidden + 2 * model.ffn) + model.vocab * model.hidden
    size = min(4 * count // (order.tensor * order.pipeline), _LARGEST_EXCHANGE_BYTES)
    values = torch.zeros(size // 4, device=rank.device)
    dist.all_reduce(values)
    rank.synchronize()
    began = time.monotonic()
    for _ in range(_EXCHANGES):
        dist.all_reduce(values)
    rank.synchronize()
    return _EXCHANGES * 2 * (n - 1) / n * size / (time.monotonic() - began) / 1e9
