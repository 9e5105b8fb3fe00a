"""Pipeline parallelism: each rank a stage of the layers, a batch in microbatches, by GPipe and by 1F1B."""

from __future__ import annotations

import torch

from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench, Variant
from gpudoctor.probes.strategies.model import build_optimizer
from gpudoctor.probes.strategies.pipeline_bubble import measured_bubble
from gpudoctor.probes.strategies.pipeline_schedule import (
    SCHEDULES,
    ScheduleName,
    actions_of,
    bubble_share,
    layers_of_stage,
    most_held,
)
from gpudoctor.probes.strategies.pipeline_steps import Stages, pipeline_step, torch_runs_schedules
from gpudoctor.probes.strategies.transformer import loss_of

_MICROBATCHES_A_STAGE = 2


def run_pipeline(rank: Rank, bench: Bench) -> None:
    """Train the model in as many stages as there are ranks, with each schedule."""
    stages = Stages(range(rank.world_size), rank.number, rank.device)
    for schedule in SCHEDULES:
        _train(rank, bench, stages, schedule, torchs_own=torch_runs_schedules())


def _train(rank: Rank, bench: Bench, stages: Stages, schedule: ScheduleName, *, torchs_own: bool) -> None:
    bench.begin_variant()
    microbatches = _MICROBATCHES_A_STAGE * stages.count
    module = bench.model()
    module.keep_layers(layers_of_stage(bench.shape.layers, stages.index, stages.count))
    optimizer = build_optimizer(module.parameters())
    boundary = (bench.shape.sequence, bench.shape.width)
    play = pipeline_step(stages, module, schedule, microbatches, loss_of, boundary, torchs_own=torchs_own)
    figures = {
        "stages": float(stages.count),
        "microbatches": float(microbatches),
        "microbatches_held": float(most_held(actions_of(schedule, 0, stages.count, microbatches))),
        "bubble_share_expected": bubble_share(stages.count, microbatches),
        "bubble_share": measured_bubble(rank, stages, schedule, microbatches, torchs_own=torchs_own),
        "torch_schedule": float(torchs_own),
    }

    def step(number: int) -> torch.Tensor | None:
        optimizer.zero_grad()
        loss = play(*bench.batch(number))
        optimizer.step()
        return loss

    bench.train(Variant(schedule, figures=figures), step, module, optimizer)
