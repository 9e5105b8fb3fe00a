"""The options of Megatron-LM's pretrain_gpt.py for a planned model and split."""

from __future__ import annotations

from gpudoctor.plan.memory import PlanJob
from gpudoctor.plan.model_shape import ModelShape, layers_of_stages
from gpudoctor.plan.precision import Optimizer
from gpudoctor.plan.settings import Batch
from gpudoctor.plan.split import RankSplit

PROGRAM = "pretrain_gpt.py"
_OPTIMIZERS: dict[Optimizer, str] = {
    "adamw": "--optimizer adam",
    "momentum": "--optimizer sgd",
    "sgd": "--optimizer sgd --sgd-momentum 0",
}


def options_of(job: PlanJob, split: RankSplit, batch: Batch) -> tuple[str, ...]:
    """The options, one line each; the user adds data, tokenizer, learning rate and the number of steps.

    Source: Megatron-LM, megatron/training/arguments.py.
    """
    options = [
        f"--tensor-model-parallel-size {split.tensor}",
        f"--pipeline-model-parallel-size {split.pipeline}",
        f"--micro-batch-size {batch.per_gpu} --global-batch-size {batch.global_batch} --seq-length {job.seq}",
    ]
    if job.shape.layers % split.pipeline:
        options.append(f'--pipeline-model-parallel-layout "{_layout(job.shape, split)}"')
    if split.tensor > 1:
        options.append("--sequence-parallel")
    if split.data > 1:
        options.append("--use-distributed-optimizer --overlap-grad-reduce")
    if job.recompute == "full":
        options.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    if job.precision in ("bf16", "fp16"):
        options.append(f"--{job.precision}")
    if job.optimizer in _OPTIMIZERS:
        options.append(_OPTIMIZERS[job.optimizer])
    return (*options, *_model(job.shape, job.seq))


def lacks(job: PlanJob, split: RankSplit) -> tuple[str, ...]:
    """The parts of the plan that Megatron-LM has no option for, as sentences; it shards only Adam's states."""
    asked = []
    if job.precision == "bf16-true":
        asked.append("bf16 weights without fp32 copies")
    if job.optimizer not in _OPTIMIZERS:
        asked.append(job.optimizer)
    elif job.optimizer != "adamw" and split.data > 1:
        asked.append(f"{job.optimizer} whose states are sharded")
    return tuple(
        f"Megatron-LM has no option for {what}: the plan counts its memory, and your program must provide it"
        for what in asked
    )


def _layout(shape: ModelShape, split: RankSplit) -> str:
    """The layers of each stage: E is the embedding, t a layer, L the loss."""
    stages = "|".join(f"t*{layers}" for layers in layers_of_stages(shape.layers, split.pipeline))
    return f"E{stages}L"


def _model(shape: ModelShape, seq: int) -> tuple[str, ...]:
    bias = shape.out_bias and shape.mlp_bias
    positions = "learned_absolute" if shape.positions else "rope"
    options = [
        f"--num-layers {shape.layers} --hidden-size {shape.hidden} --ffn-hidden-size {shape.ffn}",
        f"--num-attention-heads {shape.heads} --kv-channels {shape.head_dim}",
        f"--max-position-embeddings {max(shape.max_seq, seq)} --position-embedding-type {positions}",
        f"--normalization {'LayerNorm' if shape.norm_bias else 'RMSNorm'}",
    ]
    if shape.kv_heads != shape.heads:
        options.append(f"--group-query-attention --num-query-groups {shape.kv_heads}")
    switches = (
        ("--swiglu", shape.gated),
        ("--disable-bias-linear", not bias),
        ("--add-qkv-bias", shape.qkv_bias and not bias),
        ("--qk-layernorm", shape.qk_norm),
        ("--untie-embeddings-and-output-weights", not shape.tied),
        (f"--num-experts {shape.experts} --moe-router-topk {shape.experts_per_token}", shape.experts > 1),
    )
    return (*options, *(words for words, wanted in switches if wanted))
