"""DataParallel: one process, here rank 0, spreads each batch over all GPUs while the other ranks are idle."""

from __future__ import annotations

import torch
from torch import nn

from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner.messages import StrategyLeftOut
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench, Variant
from gpudoctor.probes.strategies.model import build_optimizer, train_step


def run_dp(rank: Rank, bench: Bench) -> None:
    """Train on rank 0 over all GPUs of the run; the other ranks go on to the rendezvous after the strategy.

    They do not wait for rank 0 here, because an error raised there would leave them waiting.
    """
    rank.barrier()
    devices = list(range(torch.cuda.device_count()))
    if rank.number == 0 and len(devices) >= rank.world_size:
        _train(rank, bench, devices)
        return
    rank.phase("dp step")  # all ranks must make the same moves, or the parent cannot tell which one is behind
    if rank.number == 0:
        # a device cgroup hides the other GPUs, or they are MIG instances, of which CUDA allows a process only one
        why = f"it wants all {rank.world_size} GPUs in one process, and this one was given {len(devices)}"
        rank.send(StrategyLeftOut("dp", Missing(why, "denied")))


def _train(rank: Rank, bench: Bench, devices: list[int]) -> None:
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

    bench.train(Variant("dp", figures=figures), step, model, optimizer, alone=True)
