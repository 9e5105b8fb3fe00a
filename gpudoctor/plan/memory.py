"""Memory of one GPU under a split of the model over ranks, part by part."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.plan.model_shape import ModelShape, layers_of_stages
from gpudoctor.plan.tensor_bytes import (
    Engine,
    Kernels,
    Optimizer,
    Precision,
    Recompute,
    StateBytes,
    backward_bytes,
    compute_bytes,
    kept_bytes,
    layer_bytes,
    loss_bytes,
    state_bytes,
)

StrategyName = Literal["ddp", "zero1", "zero2", "fsdp", "fsdp-offload", "tensor", "pipeline", "3d"]
Sharding = Literal["none", "optimizer", "gradients", "parameters"]

TITLES: dict[StrategyName, str] = {
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "fsdp": "FSDP (ZeRO-3)",
    "fsdp-offload": "FSDP, states in host RAM",
    "tensor": "Tensor parallel",
    "pipeline": "Pipeline (1F1B)",
    "3d": "3D (tensor x pipeline x data)",
}
# 855 MiB beside the tensors: llm.c's own count of GPT-2 124M on an A800 ("device memory usage" less its allocations)
CONTEXT_BYTES = 855 * 2**20
# NCCL_BUFFSIZE's default of 4 MiB, to send and to receive, 32 channels: a communicator. NCCL user guide
COMMUNICATOR_BYTES = 2 * 4 * 2**20 * 32
# memory of the caching allocator beyond the tensors; fitted to torchtitan's table of December 2024
# (docs/plan-accuracy.md)
ALLOCATOR_SHARE = 0.10


def model_split_name(tensor: int, pipeline: int) -> Literal["ddp", "tensor", "pipeline", "3d"]:
    """The name of a split of the model itself; "ddp" if it stays whole."""
    if pipeline > 1:
        return "3d" if tensor > 1 else "pipeline"
    return "tensor" if tensor > 1 else "ddp"


class RankSplit(msgspec.Struct, frozen=True):
    """data x tensor x pipeline ranks; groups of `shards` data-parallel ranks share the states that `sharding` names.

    Fewer shards than data ranks: FSDP inside each node, replicas between them (HSDP).
    """

    name: StrategyName
    data: int
    tensor: int = 1
    pipeline: int = 1
    sharding: Sharding = "none"
    shards: int = 1
    offload: bool = False
    engine: Engine = "autocast"

    @property
    def world(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def communicators(self) -> int:
        """The number of NCCL communicators of one rank: one for each kind of parallelism, two if FSDP replicates."""
        replicated = self.sharding == "parameters" and self.shards < self.data
        return sum((self.data > 1, self.tensor > 1, self.pipeline > 1, replicated))

    @property
    def title(self) -> str:
        if self.name == "ddp" and self.data == 1:
            return "One GPU"
        if self.name == "fsdp" and self.shards < self.data:
            return f"FSDP over {self.shards}, {self.data // self.shards} replicas (HSDP)"
        if self.name in ("tensor", "pipeline", "3d"):
            parts = ((self.tensor, "tensor"), (self.pipeline, "pipeline"), (self.data, "data"))
            text = " x ".join(f"{word} {ways}" for ways, word in parts if ways > 1)
            if not text:
                return TITLES[self.name]
            return f"{'3D' if self.name == '3d' else TITLES[self.name]}: {text}"
        return TITLES[self.name]


def fsdp(ranks: int, shards: int | None = None, *, offload: bool = False) -> RankSplit:
    """FSDP over all ranks, or over groups of `shards` of them; `offload`: with its states in host RAM."""
    name: StrategyName = "fsdp-offload" if offload else "fsdp"
    return RankSplit(name, ranks, sharding="parameters", shards=shards or ranks, offload=offload, engine="sharded")


class PlanJob(msgspec.Struct, frozen=True):
    """What to train and how: `micro_batch` sequences of `seq` tokens at a time on one data-parallel rank.

    `micro_batches` of these make a step; a pipeline has several in flight.
    """

    shape: ModelShape
    precision: Precision
    optimizer: Optimizer
    seq: int
    micro_batch: int = 1
    micro_batches: int = 1
    recompute: Recompute = "none"
    kernels: Kernels = Kernels()

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.micro_batch * self.seq


class Memory(msgspec.Struct, frozen=True):
    """Bytes on the fullest GPU. `gathered`: weights and gradients that FSDP holds unsharded for a moment.

    `host`: what offloading keeps in RAM instead, for one rank.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    gathered: float
    allocator: float
    framework: float
    host: float = 0.0

    @property
    def tensors(self) -> float:
        """The memory that PyTorch counts (max_memory_reserved): all but CUDA's and NCCL's."""
        return self.total - self.framework

    @property
    def total(self) -> float:
        states = self.weights + self.gradients + self.optimizer
        return states + self.activations + self.gathered + self.allocator + self.framework


def memory_of(job: PlanJob, split: RankSplit, allocator_share: float = ALLOCATOR_SHARE) -> Memory:
    """The memory of the fullest GPU: of the first pipeline stage, the second, or the last.

    The first has the embedding and the most micro-batches in flight, the last the head and the loss. Of the stages
    between them the second holds most: as many layers as any, and more micro-batches in flight.

    Formula: states + activations + gathered, times 1.1 for the caching allocator, + 855 MiB for CUDA's
    context and libraries + 256 MiB for each NCCL communicator.
    Source: the parts' own formulas; llm.c's log for the context; NCCL_BUFFSIZE in NCCL's user guide; the
    10 % are fitted to published runs (docs/plan-accuracy.md).
    """
    last = split.pipeline - 1
    stages = [_stage(job, split, stage) for stage in sorted({0, min(1, last), last})]
    fullest = max(stages, key=lambda memory: memory.total)
    tensors = fullest.total * allocator_share
    framework = CONTEXT_BYTES + COMMUNICATOR_BYTES * split.communicators
    return msgspec.structs.replace(fullest, allocator=tensors, framework=framework)


def stage_parameters(shape: ModelShape, pipeline: int, stage: int) -> int:
    """Parameters of one pipeline stage: its layers, the embedding on the first, the head on the last.

    Formula: layers are spread evenly; if their number does not divide, the first and last stage get one less. A
    head that is tied to the embedding exists twice.
    Source: Megatron-LM; arXiv:2401.10241 section 5.1.
    """
    layers = layers_of_stages(shape.layers, pipeline)[stage]
    count = layers * shape.layer_parameters
    if stage == 0:
        count += shape.embedding_parameters
    if stage == pipeline - 1:
        tied_again = shape.embedding_parameters if shape.tied and pipeline > 1 else 0
        count += shape.head_parameters + tied_again
    return count


def _stage(job: PlanJob, split: RankSplit, stage: int) -> Memory:
    parameters = stage_parameters(job.shape, split.pipeline, stage) / split.tensor
    per = state_bytes(split.engine, job.precision, job.optimizer)
    weights, gradients, optimizer = sharded_states(per, parameters, split)
    host = 0.0
    if split.offload:
        host, weights, gradients, optimizer = weights + gradients + optimizer, 0.0, 0.0, 0.0
    retained, working, loss = activation_parts(job, split, stage)
    layer_gathered, loss_gathered, last_gathered = gathered_parts(job, split)
    if working + layer_gathered >= loss + loss_gathered:
        moment, gathered = working, layer_gathered
    else:
        moment, gathered = loss, loss_gathered
    activations = retained + moment
    # during the backward pass gradients replace activations: only the larger end counts
    early = 0.0 if not gradients_persist(job, split) else gradients
    if early + activations + gathered > gradients + last_gathered:
        gradients = early
    else:
        activations, gathered = 0.0, last_gathered
    return Memory(weights, gradients, optimizer, activations, gathered, 0.0, 0.0, host)


def gradients_persist(job: PlanJob, split: RankSplit) -> bool:
    """Whether the gradients exist already when the backward pass begins.

    Formula: yes with several micro-batches a step (accumulation), in DDP's buckets, and in the buffers of
    ZeRO and Megatron-LM; no on one GPU and under FSDP with one micro-batch, because zero_grad has freed
    them: then max(activations, gradients) counts.
    Source: torch.optim.Optimizer.zero_grad (set_to_none=True); DistributedDataParallel
    (gradient_as_bucket_view); Megatron-LM's contiguous gradient buffers.
    """
    if job.micro_batches > 1 or split.engine in ("zero", "megatron"):
        return True
    return split.engine == "autocast" and split.data > 1


def sharded_states(per: StateBytes, parameters: float, split: RankSplit) -> tuple[float, float, float]:
    """Weights, gradients and optimizer states of one rank: bytes.

    Formula: with n ranks that share: ZeRO-1 shards the optimizer (w + g + o/n), ZeRO-2 the gradients too
    (w + (g + o)/n), ZeRO-3 and FSDP all ((w + g + o)/n). Tensor and pipeline parallelism divide the
    parameters themselves by t and p.
    Source: ZeRO (arXiv:1910.02054) section 5 and figure 1; PyTorch FSDP (arXiv:2304.11277).
    """
    n = split.shards
    level = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}[split.sharding]
    return (
        parameters * per.weights / (n if level >= 3 else 1),
        parameters * per.gradients / (n if level >= 2 else 1),
        parameters * per.optimizer / (n if level >= 1 else 1),
    )


def activation_parts(job: PlanJob, split: RankSplit, stage: int) -> tuple[float, float, float]:
    """What a stage keeps, what the layer at work needs besides, and the loss at its largest: bytes.

    Formula: kept = layers * bytes a token * tokens * micro-batches in flight / t; the 1F1B schedule has
    min(m, p - i) in flight on stage i (from 0). At work = one whole layer if it is recomputed, plus the gradients
    of its backward pass, plus on the last stage the logits E v / t, which the training loop holds until that pass
    is over (Megatron-LM does not). The loss counts on the last stage only. The peak has kept and the larger of the
    other two. Division by t is that of tensor with sequence parallelism; the input that a layer or the head gathers
    is whole, E h (1 - 1/t).
    Source: Korthikanti et al. (arXiv:2205.05198) sections 4.2.2 and 4.2.3; 1F1B: Narayanan et al.
    (arXiv:2104.04473) section 2.2; logits: Python's scopes, and torch.distributed.pipelining's output chunks.
    """
    shape, tokens = job.shape, job.tokens / split.tensor
    layers = layers_of_stages(shape.layers, split.pipeline)[stage]
    in_flight = min(job.micro_batches, split.pipeline - stage) if split.pipeline > 1 else 1
    mixed = job.precision in ("bf16", "fp16")
    kernels = msgspec.structs.replace(job.kernels, autocast=split.name == "ddp" and mixed)
    a_token = kept_bytes(shape, job.precision, job.seq, kernels, job.recompute)
    retained = layers * a_token * tokens * in_flight
    whole = layer_bytes(shape, job.precision, job.seq, kernels)
    input_whole = compute_bytes(job.precision) * shape.hidden * (job.tokens - tokens)
    again = 0.0 if job.recompute == "none" else max(whole - a_token, 0.0)
    working = input_whole + (again + backward_bytes(shape, job.precision, kernels)) * tokens
    last = stage == split.pipeline - 1
    loss = loss_bytes(shape, job.precision, split.tensor, kernels) * job.tokens + input_whole if last else 0.0
    if last and split.engine != "megatron":
        working += compute_bytes(job.precision) * shape.vocab / split.tensor * job.tokens
    return retained, working, loss


def gathered_parts(job: PlanJob, split: RankSplit) -> tuple[float, float, float]:
    """What FSDP holds whole for a moment, at a layer's backward pass, at the loss and at the end: bytes.

    Formula: at the backward pass (3E + R) * parameters of a layer: weights of two layers (one ahead), the gradient,
    and its reduced copy with R bytes (4 in mixed precision). At the loss: the head's weights, E each. At the end
    as at the backward pass, or (2E + R) * parameters of the embedding if that is more. An embedding that is tied
    to the head is whole from the loss to the end, with its gradient: + 2E each at the backward pass.
    Source: PyTorch FSDP2 (`fully_shard` a layer, one all-gather prefetched, reduce_dtype fp32);
    arXiv:2304.11277 section 3.3.
    """
    if split.sharding != "parameters":
        return 0.0, 0.0, 0.0
    width = compute_bytes(job.precision)
    reduced = 2 if job.precision == "bf16-true" else 4
    layer = job.shape.layer_parameters / split.tensor
    embedding = job.shape.embedding_parameters / split.tensor
    head = max(job.shape.head_parameters, job.shape.vocab * job.shape.hidden) / split.tensor
    tied = 2 * width * head if job.shape.tied else 0.0
    backward = (3 * width + reduced) * layer
    return backward + tied, width * head, max(backward, (2 * width + reduced) * embedding)
