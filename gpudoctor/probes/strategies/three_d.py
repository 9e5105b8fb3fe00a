"""Data, tensor and pipeline parallelism combined, as in the largest trainings."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.model import build_optimizer
from gpudoctor.probes.strategies.pipeline_steps import SendRecvPipeline, Stages, bubble_share, layers_of_stage
from gpudoctor.probes.strategies.tensor import split_and_whole, split_blocks, split_head
from gpudoctor.probes.strategies.transformer import loss_of

_SHARDS = _STAGES = 2
_MICROBATCHES = 2


def why_not_3d(ranks: int, on_gpu: bool = False) -> str | None:
    """Why this number of ranks cannot be split into data x 2 tensor x 2 pipeline; None if it can."""
    if ranks % (_SHARDS * _STAGES) == 0:
        return None
    return f"it needs 8 ranks, or another multiple of 4 (4 make tensor 2 x pipeline 2), and these are {ranks}"


def run_3d(rank: Rank, bench: Bench) -> None:
    """Train in 2 stages with 1F1B, each split over 2 ranks, in as many data-parallel copies as the ranks allow.

    Ranks that share a layer's matrices are neighbours, since they communicate most.
    """
    from torch.distributed.device_mesh import init_device_mesh

    copies = rank.world_size // (_SHARDS * _STAGES)
    with rank.blocked():
        mesh = init_device_mesh(
            rank.device.type, (copies, _STAGES, _SHARDS), mesh_dim_names=("data", "pipeline", "tensor")
        )
    copy = mesh.get_local_rank("data")
    stages = Stages(dist.get_process_group_ranks(mesh.get_group("pipeline")), rank.number, rank.device)
    model = bench.model()
    model.keep_layers(layers_of_stage(bench.shape.layers, stages.index, stages.count))
    with rank.blocked():
        split_blocks(model, mesh["tensor"])
        split_head(model, mesh["tensor"])
    optimizer = build_optimizer(split_and_whole(model), fused=True)
    boundary = (bench.shape.sequence, bench.shape.width)
    play = SendRecvPipeline(stages, model, "1f1b", _MICROBATCHES, loss_of, boundary)

    def step(number: int) -> torch.Tensor | None:
        optimizer.zero_grad()
        loss = play(*bench.part(number, copy, copies))
        _average(model, mesh.get_group("data"), copies)
        optimizer.step()
        return loss

    figures = {
        "data": float(copies),
        "shards": float(_SHARDS),
        "stages": float(_STAGES),
        "microbatches": float(_MICROBATCHES),
        "bubble_share_expected": bubble_share(_STAGES, _MICROBATCHES),
    }
    bench.train("3d", step, model, optimizer, figures=figures)


def _average(model: nn.Module, group: Any, copies: int) -> None:
    """Average the gradients over the copies of the model; of a split weight this rank's part."""
    if copies == 1:
        return
    for weight in model.parameters():
        gradient: Any = weight.grad
        local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        dist.all_reduce(local, group=group)
        local.div_(copies)
