"""The job that `--try` runs: the planned model scaled down, and its split on the available ranks."""

from __future__ import annotations

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.plan.memory import PlanJob
from gpudoctor.plan.split import RankSplit

# the accepted relative difference between predicted and measured memory of CPU ranks
TOLERANCE = 0.10
LARGEST_MICRO_BATCHES = 2  # of one step, if there is no pipeline


class ReducedSize(msgspec.Struct, frozen=True):
    """The upper limits for one kind of device, chosen for steps of well under a second.

    Many tokens and a small hidden size, as in real trainings, so that activations outweigh a weight's gradient.
    """

    layers: int
    hidden: int
    head_dim: int
    seq: int
    micro_batch: int


CPU_SIZE = ReducedSize(layers=4, hidden=128, head_dim=32, seq=256, micro_batch=2)
GPU_SIZE = ReducedSize(layers=8, hidden=2048, head_dim=128, seq=2048, micro_batch=4)


def reduced_split(split: RankSplit, ranks: int, layers: int) -> RankSplit:
    """The planned split on `ranks` ranks. Raises UserError, with the nearest number that works, if it is impossible.

    Tensor and pipeline parallelism are kept, data parallelism over 2 ranks if these leave enough for the others. With
    tensor or pipeline parallelism the states are not sharded.
    """
    if split.sharding == "parameters":
        return RankSplit(
            split.name, ranks, sharding="parameters", shards=ranks, offload=split.offload, engine="sharded"
        )
    if split.tensor * split.pipeline == 1 or ranks == 1:
        return RankSplit("ddp", ranks)
    if split.world == ranks:
        return RankSplit(split.name, split.data, split.tensor, split.pipeline)
    both = split.tensor > 1 and split.pipeline > 1
    few = _least_tensor(split)
    for data in (2, 1) if split.data > 1 else (1,):
        if ranks % data:
            continue
        rest = ranks // data
        if both and rest % few == 0 and 1 < rest // few <= layers:
            return RankSplit("3d", data, few, rest // few)
        if not both and split.tensor > 1 and 1 < rest <= split.tensor and split.tensor % rest == 0:
            return RankSplit("tensor", data, rest, 1)
        if not both and split.pipeline > 1 and 1 < rest <= layers:
            return RankSplit("pipeline", data, 1, rest)
    if both:
        nearest = few * min(max(ranks // few, 2), layers)
    elif split.pipeline > 1:
        nearest = min(ranks, layers)
    else:
        nearest = max(t for t in range(few, split.tensor + 1) if split.tensor % t == 0 and t <= max(ranks, few))
    raise UserError(
        f"--ranks {ranks}: {split.title} cannot be tried on so many; the nearest that works: --ranks {nearest}"
    )


def least_ranks(split: RankSplit, usual: int) -> int:
    """The default number of CPU ranks: `usual`, or as many as every kind of parallelism needs."""
    return max(usual if split.tensor == 1 else 1, _least_tensor(split) * (2 if split.pipeline > 1 else 1))


def _least_tensor(split: RankSplit) -> int:
    """The fewest tensor-parallel ranks that divide whatever the planned ones divide."""
    return next((t for t in range(2, split.tensor + 1) if split.tensor % t == 0), 1)


def reduced_job(job: PlanJob, split: RankSplit, size: ReducedSize) -> PlanJob:
    """The job scaled down for a verification: hidden, ffn and vocabulary in proportion, with the same groups of heads.

    No dimension exceeds the model's; heads, ffn, vocabulary and sequence divide by the tensor-parallel ranks.
    """
    shape, tensor = job.shape, split.tensor
    hidden = min(shape.hidden, size.hidden)
    share = hidden / shape.hidden
    group = shape.heads // shape.kv_heads
    wanted = shape.query_width * share
    kv_heads = tensor * max(1, round(wanted / (group * min(shape.head_dim, size.head_dim) * tensor)))
    head_dim = max(8, round(wanted / (group * kv_heads) / 8) * 8)
    if share == 1:
        kv_heads, head_dim = shape.kv_heads, shape.head_dim
    step = 8 * tensor
    seq = max(min(job.seq, size.seq) // tensor, 1) * tensor
    small = msgspec.structs.replace(
        shape,
        layers=min(shape.layers, max(size.layers, 2 * split.pipeline)),
        hidden=hidden,
        heads=group * kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=_rounded(shape.ffn * shape.experts_per_token * share, step),
        vocab=_rounded(shape.vocab * share, step),
        positions=seq if shape.positions else 0,
        max_seq=seq,
        experts=1,
        experts_per_token=1,
    )
    most = 2 * split.pipeline if split.pipeline > 1 else LARGEST_MICRO_BATCHES
    return msgspec.structs.replace(
        job,
        shape=small,
        seq=seq,
        micro_batch=min(job.micro_batch, size.micro_batch),
        micro_batches=min(job.micro_batches, most),
    )


def _rounded(value: float, step: int) -> int:
    return max(round(value / step), 1) * step
