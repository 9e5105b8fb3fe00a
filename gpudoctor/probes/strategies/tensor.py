"""Tensor parallelism, alone and combined with data and pipeline parallelism (3D), as in the largest trainings.

Every layer's matrices are sharded by DTensor's column- and row-parallel styles.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.memory import dtensor_module, local_part
from gpudoctor.probes.strategies.model import build_optimizer, train_step
from gpudoctor.probes.strategies.pipeline_steps import SendRecvPipeline, Stages, bubble_share, layers_of_stage
from gpudoctor.probes.strategies.transformer import Transformer, loss_of

# Split by columns (outputs) and by rows (inputs); each pair needs one sum over the ranks.
COLUMNS = ("attention.query", "attention.key", "attention.value", "mlp.up")
ROWS = ("attention.out", "mlp.down")
_WRONG_SHARD = "up.weight"  # of the first layer, by the fault wrong-shard
_SHARDS = _STAGES = 2
_MICROBATCHES = 2


def run_tensor(rank: Rank, bench: Bench) -> None:
    """Train the model with each layer split over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    model = bench.model()
    with rank.blocked():
        mesh = init_device_mesh(rank.device.type, (rank.world_size,), mesh_dim_names=("tensor",))
        split(model, mesh)
    if rank.injected("wrong-shard"):
        inject_wrong_shard(model, bench.model(), rank.number, rank.world_size)
    optimizer = build_optimizer(split_and_whole(model), fused=True)
    figures = {"shards": float(rank.world_size)}
    wrong = wrong_shards(model, bench.model(), rank.number, rank.world_size)
    if wrong:
        figures[f"wrong_shards_rank_{rank.number}"] = float(wrong)

    def step(number: int) -> torch.Tensor:
        return train_step(model, optimizer, bench.batch(number))

    bench.train("tensor", step, model, optimizer, figures=figures)


def split(model: Transformer, mesh: Any) -> None:
    """Split the matrices of every layer over the ranks of a one-dimensional mesh; norms are replicated.

    The head, if the model (or stage) has one, is split by columns if it divides evenly; every rank gets all logits.
    """
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    whole = dtensor_module().Replicate()
    for block in model.blocks.values():
        styles: dict[str, Any] = {name: ColwiseParallel() for name in COLUMNS}
        styles.update({name: RowwiseParallel() for name in ROWS})
        # query, key and value share one input: otherwise each of them would sum its gradient over the ranks separately
        styles["attention"] = PrepareModuleInput(input_layouts=(whole, None), desired_input_layouts=(whole, None))
        parallelize_module(block, mesh, styles)
    if model.head is not None and model.head.out.out_features % mesh.size() == 0:
        parallelize_module(model, mesh, {"head.out": ColwiseParallel(output_layouts=whole)})


def split_and_whole(model: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups for a fused optimizer: DTensors separate from replicated tensors."""
    parameters = list(model.parameters())
    split = [weight for weight in parameters if hasattr(weight, "to_local")]
    return [{"params": split}, {"params": [weight for weight in parameters if not hasattr(weight, "to_local")]}]


def part_of(name: str, whole: torch.Tensor, index: int, shards: int) -> torch.Tensor:
    """The part of a weight that the rank at `index` must hold."""
    if name == "head.out.weight":  # its size is the vocabulary's, which need not be a multiple of the shards
        return whole if whole.shape[0] % shards else whole.chunk(shards, dim=0)[index]
    if name.endswith(tuple(f"{column}.weight" for column in COLUMNS)):
        return whole.chunk(shards, dim=0)[index]
    if name.endswith(tuple(f"{row}.weight" for row in ROWS)):
        return whole.chunk(shards, dim=1)[index]
    return whole


def inject_wrong_shard(model: Transformer, original: Transformer, index: int, shards: int) -> None:
    """The fault wrong-shard: this rank holds its neighbour's part of one matrix."""
    name = next(name for name, _ in model.named_parameters() if name.endswith(_WRONG_SHARD))
    neighbours = part_of(name, original.get_parameter(name).detach(), (index + 1) % shards, shards)
    local_part(model.get_parameter(name)).detach().copy_(neighbours)


def wrong_shards(model: Transformer, original: Transformer, index: int, shards: int) -> int:
    """The number of weights of which this rank does not hold exactly its own part."""
    wrong = 0
    for name, weight in model.named_parameters():
        own = part_of(name, original.get_parameter(name).detach(), index, shards)
        wrong += not torch.equal(local_part(weight).detach(), own)
    return wrong


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
        split(model, mesh["tensor"])
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
        local = local_part(weight.grad)
        dist.all_reduce(local, group=group)
        local.div_(copies)
