"""Two ranks change their GPUs: does slowness stay with the GPU, or with the process and its CPUs?"""

from __future__ import annotations

import copy
import statistics
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpudoctor.facts.model.measurements import Swap
from gpudoctor.probes.link.peer_copies import device_of
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.train.sanity_model import Data, Shape
from gpudoctor.probes.train.work import Work

# Below the 1.10 that is judged: a swap that nobody needed costs a second
_SUSPICIOUS = 1.07
_STEPS = 15
_WARM_UP = 5


def swap_suspect(rank: Rank, shape: Shape, model: nn.Module, batch: int, own_ms: float) -> Swap | None:
    """Let the slowest rank and the middle one compute on each other's GPU; rank 0 gives the figures.

    None where no rank stands out, where a rank sees its own GPU only, or for a single rank.
    """
    if not rank.on_gpu or rank.world_size < 2:
        return None
    if rank.smallest(torch.cuda.device_count()) < rank.world_size:
        return None
    times_ms = _gathered(rank, own_ms)
    order = sorted(range(rank.world_size), key=times_ms.__getitem__)
    suspect, partner = order[-1], order[(len(order) - 1) // 2]
    if times_ms[suspect] < _SUSPICIOUS * times_ms[partner]:
        return None
    rank.phase(f"swap GPUs of ranks {suspect} and {partner}")
    other = {suspect: partner, partner: suspect}.get(rank.number)
    swapped_ms = 0.0
    rank.barrier()
    if other is not None:
        # a GPU in exclusive mode, or full, takes no second process: then there is nothing to tell
        with suppress(RuntimeError):
            swapped_ms = _compute_ms(rank, shape, model, batch, device_of(rank.number, other))
    rank.barrier()
    found = _gathered(rank, swapped_ms)
    if not (found[suspect] and found[partner]):
        return None
    return Swap(
        suspect=suspect,
        partner=partner,
        suspect_ms=times_ms[suspect],
        partner_ms=times_ms[partner],
        suspect_on_partners_gpu_ms=found[suspect],
        partner_on_suspects_gpu_ms=found[partner],
    )


def _compute_ms(rank: Rank, shape: Shape, model: nn.Module, batch: int, device: torch.device) -> float:
    cuda: Any = torch.cuda  # not annotated everywhere
    with cuda.device(device):
        there = copy.deepcopy(model).to(device)
        data = Data(shape, batch, rank.world_size, device).first_batch_of(rank.number)
        work, times_ms = Work(rank, shape), []
        for _ in range(_WARM_UP + _STEPS):
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            start.record()
            work(there, data)
            end.record()
            end.synchronize()
            times_ms.append(float(start.elapsed_time(end)))
            there.zero_grad()
        del there, data
        torch.cuda.empty_cache()
    return statistics.median(times_ms[_WARM_UP:])


def _gathered(rank: Rank, value: float) -> list[float]:
    everybody = [torch.zeros(1, dtype=torch.float64) for _ in range(rank.world_size)]
    with rank.blocked():
        dist.all_gather(everybody, torch.tensor([value], dtype=torch.float64))
    return [float(theirs) for theirs in everybody]
