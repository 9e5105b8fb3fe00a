"""Pipeline parallelism: each rank a stage of the layers, a batch in microbatches, by GPipe and by 1F1B."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench, Variant
from gpudoctor.probes.strategies.model import loss_of
from gpudoctor.probes.strategies.pipeline_bubble import measured_bubble
from gpudoctor.probes.strategies.pipeline_schedule import (
    SCHEDULES,
    ScheduleName,
    actions_of,
    bubble_share,
    layers_of_stage,
    most_held,
)
from gpudoctor.probes.strategies.pipeline_steps import (
    HandWritten,
    PipelineStep,
    Stages,
    TorchsOwn,
    cut,
    torch_runs_schedules,
)

_MICROBATCHES_A_STAGE = 2


def run_pipeline(rank: Rank, bench: Bench) -> None:
    """Train the model in as many stages as there are ranks, with each schedule."""
    stages = Stages(range(rank.world_size), rank.number, rank.device)
    for schedule in SCHEDULES:
        _train(rank, bench, stages, schedule, torchs_own=torch_runs_schedules())


def _train(rank: Rank, bench: Bench, stages: Stages, schedule: ScheduleName, *, torchs_own: bool) -> None:
    bench.begin_variant()
    microbatches = _MICROBATCHES_A_STAGE * stages.count
    module = cut(bench.model(), layers_of_stage(bench.shape.layers, stages.index, stages.count))
    optimizer = bench.optimizer(module.parameters())
    play: PipelineStep
    if torchs_own:
        play = TorchsOwn(stages, module, schedule, microbatches, loss_of)
    else:
        boundary = (bench.shape.sequence, bench.shape.width)
        play = HandWritten(stages, module, schedule, microbatches, loss_of, boundary)
    figures = {
        "stages": float(stages.count),
        "microbatches": float(microbatches),
        "microbatches_held": float(most_held(actions_of(schedule, 0, stages.count, microbatches))),
        "bubble_share_expected": bubble_share(stages.count, microbatches),
        "bubble_share": measured_bubble(rank, stages, schedule, microbatches, torchs_own=torchs_own),
        "torch_schedule": float(torchs_own),
    }
    bench.train(
        Variant(schedule, figures=figures),
        functools.partial(_step, bench, optimizer, play),
        holds=functools.partial(_held, module, optimizer),
        weights=functools.partial(_weights, module),
    )


def _step(bench: Bench, optimizer: torch.optim.Optimizer, play: PipelineStep, number: int) -> torch.Tensor | None:
    optimizer.zero_grad()
    loss = play(*bench.batch(number))
    optimizer.step()
    return loss


def _held(module: nn.Module, optimizer: Any) -> tuple[Any, Any]:
    return module.parameters(), optimizer


def _weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters())
