"""The DDP sanity train: a short real training, measured so that a slow rank can be identified."""

from __future__ import annotations

import copy
import hashlib
import statistics
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from gpudoctor.facts.model.measurements import BucketStep, Swap
from gpudoctor.probes.collective.probe import contributions_to_the_sum
from gpudoctor.probes.link.peer_copies import device_of
from gpudoctor.probes.runner.device import add_bytes, timing_event
from gpudoctor.probes.runner.merge import finite
from gpudoctor.probes.runner.messages import TrainSample
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.train.core_turns import CoreTurns, take_turns
from gpudoctor.probes.train.sanity_model import Data, Shape, Work, build_model, calibrated_batch, shape_for
from gpudoctor.probes.train.steps import BLOCKS, DEFAULT_BUCKET_MB, STEPS_PER_BLOCK, Train, solo_step_ms

# Relative to the middle rank. Below the 1.10 that is judged: an unnecessary swap costs only a second
_SUSPICIOUS = 1.07
_SWAP_STEPS = 15
_SWAP_WARM_UP = 5
_WARM_UP_GPU, _WARM_UP_CPU = 8, 3  # DDP rebuilds its buckets, libraries initialise themselves
_STEADY_STEPS = 30
_SOLO_STEPS = 10
_BUCKETS_MB = (1, DEFAULT_BUCKET_MB, 100)


def run_training(rank: Rank) -> None:
    """Train, and send one TrainSample."""
    rank.phase("prepare train", "train")
    shape = shape_for(rank)
    contributions = contributions_to_the_sum(rank)
    model = build_model(shape, rank.device)
    alone = copy.deepcopy(model)
    batch = rank.batch = rank.batch or calibrated_batch(rank, shape, copy.deepcopy(model))
    data = Data(shape, batch, rank.world_size, rank.device)
    train = Train(rank, shape, model, data)
    gradient_error = train.compare_gradient(copy.deepcopy(alone))
    rank.phase("train step")
    if rank.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    train.block(_WARM_UP_GPU if rank.on_gpu else _WARM_UP_CPU)
    blocks = tuple(train.block(STEPS_PER_BLOCK) for _ in range(BLOCKS))
    rank.phase("steady train")
    steady_step_ms = train.steady_step_ms(_STEADY_STEPS)
    # Read before rank 0 works alone, which would raise its peak above the others'.
    memory_peak_mib = torch.cuda.max_memory_allocated() / 2**20 if rank.on_gpu else None
    train.inject_desync()
    turns = _turns(rank, train, [statistics.median(block.compute_ms) for block in blocks])
    rank.phase("train alone")
    solo_compute_ms = train.solo_compute_ms(_SOLO_STEPS)
    alone_step_ms = solo_step_ms(rank, shape, copy.deepcopy(alone), data, _STEADY_STEPS)
    swap: Swap | None = None
    buckets: tuple[BucketStep, ...] = ()
    if rank.job.level in ("full", "burn"):
        swap = swap_suspect(rank, shape, alone, batch, statistics.median(turns.cycles_ms))
        buckets = _bucket_steps(rank, shape, alone, data)
    parameters = list(model.parameters())
    rank.send(
        TrainSample(
            batch_per_rank=batch,
            parameters=sum(p.numel() for p in parameters),
            gradient_bytes=sum(p.numel() * p.element_size() for p in parameters),
            blocks=blocks,
            cycles_ms=turns.cycles_ms,
            rotated=turns.rotated,
            losses=tuple(finite(float(loss)) for loss in train.losses),
            weights_sha256=_sha256(parameters),
            contribution_ok=None if contributions is None else contributions.ok,
            gradient_error=gradient_error,
            steady_step_ms=steady_step_ms,
            solo_compute_ms=solo_compute_ms,
            solo_step_ms=alone_step_ms,
            buckets=buckets,
            swap=swap,
            memory_peak_mib=memory_peak_mib,
        )
    )


def _turns(rank: Rank, train: Train, block_medians_ms: list[float]) -> CoreTurns:
    """A GPU rank's cycles are its measured blocks; CPU ranks take turns on the cores."""
    if rank.on_gpu or rank.world_size == 1:
        return CoreTurns(tuple(block_medians_ms), rotated=False)
    rank.phase("compare ranks")
    return take_turns(rank, train)


def swap_suspect(rank: Rank, shape: Shape, model: nn.Module, batch: int, own_ms: float) -> Swap | None:
    """Let the slowest and the middle rank compute on each other's GPU: is the GPU slow, or the process and its CPUs?

    None if no rank stands out, if a rank sees only its own GPU, or for a single rank.
    """
    if not rank.on_gpu or rank.world_size < 2:
        return None
    if rank.smallest(torch.cuda.device_count()) < rank.world_size:
        return None
    times_ms = [theirs for [theirs] in rank.gathered([own_ms])]
    order = sorted(range(rank.world_size), key=times_ms.__getitem__)
    suspect, partner = order[-1], order[(len(order) - 1) // 2]
    if times_ms[suspect] < _SUSPICIOUS * times_ms[partner]:
        return None
    rank.phase(f"swap GPUs of ranks {suspect} and {partner}")
    other = {suspect: partner, partner: suspect}.get(rank.number)
    swapped_ms = 0.0
    rank.barrier()
    if other is not None:
        # a GPU in exclusive mode, or a full one, accepts no second process: then there is no result
        with suppress(RuntimeError):
            swapped_ms = _compute_ms(rank, shape, model, batch, device_of(rank.number, other))
    rank.barrier()
    found = [theirs for [theirs] in rank.gathered([swapped_ms])]
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
        for _ in range(_SWAP_WARM_UP + _SWAP_STEPS):
            start, end = timing_event(), timing_event()
            start.record()
            work(there, data)
            end.record()
            end.synchronize()
            times_ms.append(float(start.elapsed_time(end)))
            there.zero_grad()
        del there, data
        torch.cuda.empty_cache()
    return statistics.median(times_ms[_SWAP_WARM_UP:])


def _bucket_steps(rank: Rank, shape: Shape, model: nn.Module, data: Data) -> tuple[BucketStep, ...]:
    """The time of the plain step with each size of DDP's gradient buckets."""
    found = []
    for bucket_mb in _BUCKETS_MB:
        rank.phase(f"train with buckets of {bucket_mb} MB")
        train = Train(rank, shape, copy.deepcopy(model), data, bucket_mb)
        train.steady_step_ms(_WARM_UP_GPU)
        found.append(BucketStep(bucket_mb, train.steady_step_ms(_STEADY_STEPS)))
        del train
        if rank.on_gpu:
            torch.cuda.empty_cache()
    return tuple(found)


def _sha256(parameters: list[nn.Parameter]) -> str:
    digest = hashlib.sha256()
    for parameter in parameters:
        add_bytes(digest, parameter.detach())
    return digest.hexdigest()
