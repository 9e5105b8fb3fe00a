"""DistributedDataParallel: plain, with gradient accumulation (four micro-batches per step), and with ZeRO stage 1.

And DataParallel: one process, here rank 0, spreads each batch over all GPUs while the other ranks are idle.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner.messages import StrategyLeftOut
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench
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

    bench.train(name, step, model, optimizer, figures={"micro_batches": float(micro_batches)}, own_part=True)


def run_zero1(rank: Rank, bench: Bench) -> None:
    """ZeRO stage 1: the optimizer's state is divided over the ranks by ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = bench.model()
    with rank.blocked():
        ddp = ddp_model(rank, model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **OPTIMIZER_OPTIONS)

    bench.train(
        "zero1",
        lambda number: train_step(ddp, optimizer, bench.own_part(number)),
        model,
        optimizer.optim,
        own_part=True,
    )


def ddp_model(rank: Rank, model: torch.nn.Module) -> DistributedDataParallel:
    """The model in DDP; gradients are views of the buckets, so they are stored only once."""
    devices = [0] if rank.on_gpu else None
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def run_dp(rank: Rank, bench: Bench) -> None:
    """Train on rank 0 over all GPUs of the run; the other ranks go on to the rendezvous after the strategy.

    They do not wait for rank 0 here, because an error raised there would leave them waiting.
    """
    rank.barrier()
    devices = list(range(torch.cuda.device_count()))
    if rank.number == 0 and len(devices) >= rank.world_size:
        _train_dp(rank, bench, devices)
        return
    rank.phase("dp step")  # all ranks must make the same moves, or the parent cannot tell which one is behind
    if rank.number == 0:
        # a device cgroup hides the other GPUs, or they are MIG instances, of which CUDA allows a process only one
        why = f"it wants all {rank.world_size} GPUs in one process, and this one was given {len(devices)}"
        rank.send(StrategyLeftOut("dp", Missing(why, "denied")))


def _train_dp(rank: Rank, bench: Bench, devices: list[int]) -> None:
    model = bench.model()
    parallel = nn.DataParallel(model, device_ids=devices)
    optimizer = build_optimizer(model.parameters())
    figures: dict[str, float] = {}

    def step(number: int) -> torch.Tensor:
        if not number:
            for device in devices:
                torch.cuda.reset_peak_memory_stats(device)
        loss = train_step(parallel, optimizer, bench.batch(number))
        peaks = [torch.cuda.max_memory_allocated(device) for device in devices]
        figures["first_gpu_extra_bytes"] = float(peaks[0] - bench.at_first_bytes - max(peaks[1:]))
        return loss

    bench.train("dp", step, model, optimizer, figures=figures, alone=True)
