"""DistributedDataParallel: plain, with gradient accumulation (four micro-batches per step), and with ZeRO stage 1."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench, Variant
from gpudoctor.probes.strategies.model import MICRO_BATCHES, OPTIMIZER_OPTIONS, build_optimizer, train_step
from gpudoctor.probes.strategies.transformer import loss_of

_DESYNC_STEP = 4


def run_ddp(rank: Rank, bench: Bench) -> None:
    """Train with the rank's part of the batch as a whole, then in micro-batches."""
    _train(rank, bench, "ddp", 1)
    _train(rank, bench, "ddp-accumulation", MICRO_BATCHES)


def _train(rank: Rank, bench: Bench, name: str, micro_batches: int) -> None:
    bench.begin_variant()
    model = bench.model()
    with rank.blocked():
        ddp = ddp_model(rank, model)
    optimizer = build_optimizer(model.parameters())

    def step(number: int) -> torch.Tensor:
        if number == _DESYNC_STEP and rank.injected("desync"):
            with torch.no_grad():
                next(model.parameters()).view(-1)[0] += 1e-3
        optimizer.zero_grad()
        loss = torch.zeros((), device=rank.device)
        for micro in range(micro_batches):
            tokens, targets = bench.part(number, rank.number * micro_batches + micro, rank.world_size * micro_batches)
            # gradients are exchanged only once, with the last micro-batch
            with nullcontext() if micro == micro_batches - 1 else ddp.no_sync():
                part = loss_of(ddp(tokens), targets) / micro_batches
                torch.autograd.backward(part)
            loss += part.detach()
        optimizer.step()
        return loss

    bench.train(Variant(name, figures={"micro_batches": float(micro_batches)}, own_part=True), step, model, optimizer)


def run_zero1(rank: Rank, bench: Bench) -> None:
    """ZeRO stage 1: the optimizer's state is divided over the ranks by ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = bench.model()
    with rank.blocked():
        ddp = ddp_model(rank, model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **OPTIMIZER_OPTIONS)

    bench.train(
        Variant("zero1", own_part=True),
        lambda number: train_step(ddp, optimizer, bench.own_part(number)),
        model,
        optimizer.optim,
    )


def ddp_model(rank: Rank, model: torch.nn.Module) -> DistributedDataParallel:
    """The model in DDP; gradients are views of the buckets, so they are stored only once."""
    devices = [0] if rank.on_gpu else None
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
