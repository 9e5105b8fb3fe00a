"""Pipeline parallelism: each rank is a stage, batches are split into microbatches, scheduled by GPipe and by 1F1B."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import mark, ms_since
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.model import build_optimizer
from gpudoctor.probes.strategies.pipeline_steps import (
    SCHEDULES,
    ScheduleName,
    Stages,
    actions_of,
    bubble_share,
    layers_of_stage,
    most_held,
    pipeline_step,
    torch_runs_schedules,
)
from gpudoctor.probes.strategies.transformer import loss_of

_MICROBATCHES_A_STAGE = 2
_FORWARD_MS = 5.0  # long compared with a small transfer; the backward takes twice as long, as for matrix products
_BACKWARD_TIMES = 2
_REPEATS = 2
_WIDTH = 64
_SIDE = 2048  # of the matrices that keep a GPU busy
_TRIED_PRODUCTS = 20


def run_pipeline(rank: Rank, bench: Bench) -> None:
    """Train the model in as many stages as there are ranks, with each schedule."""
    stages = Stages(range(rank.world_size), rank.number, rank.device)
    for schedule in SCHEDULES:
        _train(rank, bench, stages, schedule)


def _train(rank: Rank, bench: Bench, stages: Stages, schedule: ScheduleName) -> None:
    bench.begin_variant()
    microbatches = _MICROBATCHES_A_STAGE * stages.count
    module = bench.model()
    module.keep_layers(layers_of_stage(bench.shape.layers, stages.index, stages.count))
    optimizer = build_optimizer(module.parameters())
    boundary = (bench.shape.sequence, bench.shape.width)
    play = pipeline_step(stages, module, schedule, microbatches, loss_of, boundary)
    figures = {
        "stages": float(stages.count),
        "microbatches": float(microbatches),
        "microbatches_held": float(most_held(actions_of(schedule, 0, stages.count, microbatches))),
        "bubble_share_expected": bubble_share(stages.count, microbatches),
        "bubble_share": _measured_bubble(rank, stages, schedule, microbatches),
        "torch_schedule": float(torch_runs_schedules()),
    }

    def step(number: int) -> torch.Tensor | None:
        optimizer.zero_grad()
        loss = play(*bench.batch(number))
        optimizer.step()
        return loss

    bench.train(schedule, step, module, optimizer, figures=figures)


def _measured_bubble(rank: Rank, stages: Stages, schedule: ScheduleName, microbatches: int) -> float:
    """The share of a step in which the stages are idle: 1 - work / step, of the best of a few steps.

    Measured with stages that all take the same time. Those of a small model do not: the first has the embedding, the
    last the head, and CPU ranks share cores. So here each stage works for a fixed time instead (a CPU rank sleeps,
    which needs no core), which leaves only the schedule and the transfers.
    """
    pace = _Pace(rank)
    play = pipeline_step(stages, _Paced(pace), schedule, microbatches, _mean, (_WIDTH,))
    batch = torch.ones(microbatches, _WIDTH, device=rank.device)
    shares = []
    for _ in range(1 + _REPEATS):
        pace.forget()
        rank.barrier()
        start_ns = time.monotonic_ns()
        with rank.blocked():
            play(batch, batch)
            rank.synchronize()
        work_ms = torch.tensor([pace.passed_ms()])
        # A step takes as long as its slowest stage; in whole microseconds, since ranks exchange integers.
        step_ms = -rank.smallest(-round(ms_since(start_ns) * 1e3)) / 1e3
        with rank.blocked():
            dist.all_reduce(work_ms)
        shares.append(max(0.0, 1 - float(work_ms) / stages.count / step_ms))
    return min(shares[1:])  # the first step sets up the connections


def _mean(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return output.mean()


class _Pace:
    """Work of a fixed duration, recorded: the same number of products on each GPU, a sleep on a CPU rank."""

    def __init__(self, rank: Rank) -> None:
        self._matrix = torch.ones(_SIDE, _SIDE, device=rank.device) / _SIDE if rank.on_gpu else None
        self._slept_ms: list[float] = []
        self._events: list[tuple[Any, Any]] = []
        self._products = _TRIED_PRODUCTS
        if rank.on_gpu:
            self._products = rank.from_rank_zero(self._products_for_pace())

    def __call__(self, times: int) -> None:
        if self._matrix is None:
            start_ns = time.monotonic_ns()
            time.sleep(times * _FORWARD_MS / 1e3)
            self._slept_ms.append(ms_since(start_ns))
            return
        began = mark()
        for _ in range(times * self._products):
            torch.mm(self._matrix, self._matrix)
        self._events.append((began, mark()))

    def forget(self) -> None:
        self._slept_ms.clear()
        self._events.clear()

    def passed_ms(self) -> float:
        """The total time of all calls since `forget`; on a GPU the work must have finished."""
        return sum(self._slept_ms) + sum(float(began.elapsed_time(ended)) for began, ended in self._events)

    def _products_for_pace(self) -> int:
        for _ in range(2):  # the first initialises the library
            self.forget()
            self(1)
            torch.cuda.synchronize()
        return max(1, round(_TRIED_PRODUCTS * _FORWARD_MS / self.passed_ms()))


class _Paced(nn.Module):
    """A stage that returns its input after a fixed time; so does its backward pass."""

    def __init__(self, pace: _Pace) -> None:
        super().__init__()
        self._pace = pace
        self.factor = nn.Parameter(torch.ones(()))  # a stage without weights would have no backward pass

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        slowed: torch.Tensor = _Slowed.apply(hidden * self.factor, self._pace)  # type: ignore[no-untyped-call]
        return slowed


class _Slowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, pace: _Pace) -> torch.Tensor:
        ctx.pace = pace
        pace(1)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.pace(_BACKWARD_TIMES)
        return gradient, None
