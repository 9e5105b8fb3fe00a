"""The DDP sanity train: a short real training, measured so that a slow rank can be identified."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import statistics
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from gpudoctor.facts.model.measurements import LEAST_JUDGED_CYCLES, BucketStep, Swap
from gpudoctor.probes.collective.probe import contributions_to_the_sum
from gpudoctor.probes.link.peer_copies import device_of
from gpudoctor.probes.runner.merge import finite, median_deviation
from gpudoctor.probes.runner.messages import CPU_MEMORY, TrainSample
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import Stopwatch, add_bytes
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
_STEPS = 8
_SETTLING = 2  # steps discarded after a move to another core, whose caches are cold
_MOST_TURNS = 72  # over all layouts: 36 cycles on 2 cores
_LOOKS = 6
_BUDGET_S = 4.0
JUDGED_RATIO = 1.10  # at which `train.balance` warns; a test holds the two equal
_LEAST_CYCLES = 12  # a disturbance of half a second is in fewer
_OBRIEN_FLEMING = 2.053


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
    memory_peak_mib = torch.cuda.max_memory_allocated() / 2**20 if rank.on_gpu else CPU_MEMORY
    train.inject_desync()
    cycles_ms, rotated = tuple(statistics.median(block.compute_ms) for block in blocks), False
    if not rank.on_gpu and rank.world_size > 1:  # a GPU rank's cycles are its measured blocks
        rank.phase("compare ranks")
        cycles_ms, rotated = take_turns(rank, train)
    rank.phase("train alone")
    solo_compute_ms = train.solo_compute_ms(_SOLO_STEPS)
    alone_step_ms = solo_step_ms(rank, shape, copy.deepcopy(alone), data, _STEADY_STEPS)
    swap: Swap | None = None
    buckets: tuple[BucketStep, ...] = ()
    if rank.job.level in ("full", "burn"):
        swap = swap_suspect(rank, shape, alone, batch, statistics.median(cycles_ms))
        buckets = _bucket_steps(rank, shape, alone, data)
    parameters = list(model.parameters())
    rank.send(
        TrainSample(
            batch_per_rank=batch,
            parameters=sum(p.numel() for p in parameters),
            gradient_bytes=sum(p.numel() * p.element_size() for p in parameters),
            blocks=blocks,
            cycles_ms=cycles_ms,
            rotated=rotated,
            losses=tuple(finite(float(loss)) for loss in train.losses),
            weights_sha256=_sha256(parameters),
            contribution_ok=None if contributions is None else contributions.ok,
            gradient_error=None if gradient_error is None else finite(gradient_error),
            steady_step_ms=steady_step_ms,
            solo_compute_ms=solo_compute_ms,
            solo_step_ms=alone_step_ms,
            buckets=buckets,
            swap=swap,
            memory_peak_mib=memory_peak_mib,
        )
    )


def swap_suspect(rank: Rank, shape: Shape, model: nn.Module, batch: int, own_ms: float) -> Swap | None:
    """Let the slowest and the middle rank compute on each other's GPU: is the GPU slow, or the process and its CPUs?

    None if no rank stands out, if a rank sees only its own GPU, or for a single rank.
    """
    if not rank.on_gpu or rank.world_size < 2:
        return None
    if rank.smallest(torch.cuda.device_count()) < rank.world_size:
        return None
    times_ms = [others for [others] in rank.gathered([own_ms])]
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
    found = [others for [others] in rank.gathered([swapped_ms])]
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
        model_copy = copy.deepcopy(model).to(device)
        data = Data(shape, batch, rank.world_size, device).first_batch_of(rank.number)
        work, times_ms = Work(rank, shape), []
        for _ in range(_SWAP_WARM_UP + _SWAP_STEPS):
            clock = Stopwatch(rank)
            work(model_copy, data)
            times_ms.append(clock.stop().worked_ms)
            model_copy.zero_grad()
        del model_copy, data
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


def take_turns(rank: Rank, train: Train) -> tuple[tuple[float, ...], bool]:
    """This rank's time in each cycle in ms, and whether every rank ran on every core once per cycle.

    Two cores of one machine are not equally fast: turbo clocks, the core's other hardware thread, other virtual
    machines. A rank that happens to run on the slower one is not slow. So the ranks take turns: in each cycle every
    rank computes once on every core, all at the same time, and the cycle's figure is the geometric mean over the cores.
    This does for cores what the swap does for GPUs. It ends when no rank can be slow (`all_even`), or the time is up.
    """
    cores = _common_cores(rank)
    most = max(18, _MOST_TURNS // max(1, len(cores)))
    cycles: list[float] = []
    began = time.monotonic()
    affinity = os.sched_getaffinity(0)
    try:
        while len(cycles) < most:
            cycles += [_cycle(rank, train, cores) for _ in range(most // _LOOKS)]
            out_of_time = rank.from_rank_zero(int(time.monotonic() - began > _BUDGET_S))
            if out_of_time and len(cycles) >= LEAST_JUDGED_CYCLES:
                break
            if len(cycles) >= _LEAST_CYCLES and all_even(rank.gathered(cycles), most):
                break
    finally:
        os.sched_setaffinity(0, affinity)
    return tuple(cycles), bool(cores)


def all_even(cycles_ms: Sequence[Sequence[float]], most: int) -> bool:
    """Whether more cycles would hardly show that a rank is slow; `cycles_ms` by rank, at most `most` of each.

    A group-sequential test that only acquits: an accusation waits for all cycles, because a disturbance of some seconds
    looks like a slow rank (simulated: early accusations quadruple the false alarms). The judge
    (`checks/measured/rank_comparison.py`) accepts two standard errors of the median log ratio after all cycles, so at
    an earlier look of n cycles the bound is wider, C x sqrt(most / n) standard errors: the looks together err no more
    often than the last one alone. Source of the boundary: O'Brien and Fleming, A multiple testing procedure for
    clinical trials, Biometrics 35 (1979) 549; C = 2.053 for 6 equal looks, two-sided 5 % (Jennison and Turnbull, Group
    Sequential Methods, 2000, table 2.3). MAD x 1.4826 estimates a standard deviation, and that of a median of n is 1.25
    x as large / sqrt(n).
    """
    for number, own_ms in enumerate(cycles_ms):
        others = [cycles for other, cycles in enumerate(cycles_ms) if other != number]
        if not others:
            return True
        logs = [math.log(cycle_ms / statistics.median(usual)) for cycle_ms, *usual in zip(own_ms, *others, strict=True)]
        errors = _OBRIEN_FLEMING * math.sqrt(most / len(logs))
        unsure = errors * 1.25 * 1.4826 * median_deviation(logs) / math.sqrt(len(logs))
        if statistics.median(logs) + unsure >= math.log(JUDGED_RATIO):
            return False
    return True


def _cycle(rank: Rank, train: Train, cores: list[int]) -> float:
    logs = []
    for turn in range(max(1, len(cores))):
        if cores:
            os.sched_setaffinity(0, {cores[(rank.number + turn) % len(cores)]})
        times_ms = sorted(train.compute_ms(_STEPS)[_SETTLING:])
        # the lower quartile, since a disturbance only ever makes a step longer
        logs.append(math.log(max(times_ms[len(times_ms) // 4], 1e-6)))
    return math.exp(statistics.fmean(logs))


def _common_cores(rank: Rank) -> list[int]:
    """As many cores as ranks, or all there are; empty if the ranks may not all use the same cores."""
    try:
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, usable)  # allowed at all?
    except OSError:
        usable = []
    checksum = zlib.crc32(repr(usable).encode())
    if rank.smallest(checksum) != -rank.smallest(-checksum) or not usable:
        return []
    expected = min(rank.world_size, len(usable))
    return [usable[place * len(usable) // expected] for place in range(expected)]
