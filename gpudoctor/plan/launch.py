"""The command that starts the training, and the code or options that implement the strategy."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.plan.machine import Machine
from gpudoctor.plan.memory import PlanJob, RankSplit
from gpudoctor.plan.model_shape import ModelShape, layers_of_stages
from gpudoctor.plan.settings import Batch, Setting, batch_of
from gpudoctor.plan.tensor_bytes import Optimizer, Precision

PORT = 29500
_AUTOCAST: dict[Precision, str] = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
_MEGATRON = "pretrain_gpt.py"
_OPTIMIZERS: dict[Optimizer, str] = {
    "adamw": "--optimizer adam",
    "momentum": "--optimizer sgd",
    "sgd": "--optimizer sgd --sgd-momentum 0",
}


class LaunchScript(msgspec.Struct, frozen=True):
    """`command` starts the training; for several nodes it submits `script`, a Slurm batch file.

    `code` is what train.py does, or the options of Megatron-LM if the strategy needs it; the command contains them too.
    """

    command: str
    script: str | None
    code: tuple[str, ...]


def launch_of(
    machine: Machine,
    job: PlanJob,
    split: RankSplit,
    settings: tuple[Setting, ...],
    bucket: Setting | None,
    every_gpu: bool,
) -> LaunchScript:
    """The launch of a plan. `every_gpu`: the plan uses all GPUs of the node, so none has to be hidden."""
    program = _MEGATRON if split.engine == "megatron" else "train.py"
    variables = [f"{s.name}={s.value}" for s in settings]
    indices = ",".join(str(gpu.index) for gpu in machine.gpus)
    hidden = [] if every_gpu else ["CUDA_DEVICE_ORDER=PCI_BUS_ID", f"CUDA_VISIBLE_DEVICES={indices}"]
    code = _code(job, split, batch_of(job, split), bucket)
    options = [f" \\\n    {option}" for option in code] if split.engine == "megatron" else []
    per_node = machine.gpus_per_node
    if machine.nodes == 1:
        command = f"torchrun --standalone --nproc-per-node {per_node} {program}"
        return LaunchScript(" ".join([*hidden, *variables, command]) + "".join(options), None, code)
    # Slurm sets CUDA_VISIBLE_DEVICES again for each step: an export before srun does not reach the ranks
    start = " ".join(["srun", *(["env", *hidden] if hidden else []), "torchrun"])
    lines = [
        "#!/bin/bash",
        f"#SBATCH --nodes={machine.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={per_node if every_gpu else max(gpu.index for gpu in machine.gpus) + 1}",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",  # all memory: otherwise --exclusive gives the cluster's default per CPU
        *(f"export {variable}" for variable in variables),
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"{start} --nnodes {machine.nodes} --nproc-per-node {per_node} \\",
        f'  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:{PORT}" \\',
        f'  {program}{"".join(options)} "$@"',
    ]
    return LaunchScript("sbatch plan.sbatch", "\n".join(lines) + "\n", code)


def _code(job: PlanJob, split: RankSplit, batch: Batch, bucket: Setting | None) -> tuple[str, ...]:
    if split.engine == "megatron":
        return _megatron_options(job, split, batch)
    # before DDP or FSDP wraps the layers. The plan counts norms and activation functions as fused kernels; one
    # recomputed layer keeps little of them
    advice = "compile each layer (layer.compile()): norms and activations written in Python keep more than planned"
    compiled = () if job.recompute == "full" else (advice,)
    steps = _steps(job, split, batch)
    if split.world == 1 and not split.offload:
        return ("one process on one GPU: no wrapper is needed", *compiled, *steps)
    if split.name == "ddp":
        how = "device_ids=[local_rank], gradient_as_bucket_view=True"
        size = f", {bucket.name}={bucket.value}" if bucket else ""
        return (*compiled, f"DistributedDataParallel(model, {how}{size})", *steps)
    lines = [*compiled]
    mesh = ""
    if split.shards < split.data:
        replicas = split.data // split.shards
        lines.append(
            f'mesh = init_device_mesh("cuda", ({replicas}, {split.shards}), mesh_dim_names=("replicate", "shard"))'
        )
        mesh = ", mesh=mesh"
    dtype = _AUTOCAST.get(job.precision)
    policy = f", mp_policy=MixedPrecisionPolicy({dtype}, torch.float32)" if dtype else ""
    offload = ", offload_policy=CPUOffloadPolicy()" if split.offload else ""
    # wrap embedding and head separately, or both stay unsharded all the time; tied weights must stay with the model
    parts = "model.layers" if job.shape.tied else "(model.embedding, *model.layers, model.head)"
    lines.append(f"for part in {parts}: fully_shard(part{mesh}{policy}{offload})")
    lines.append(f"fully_shard(model{mesh}{policy}{offload})")
    return (*lines, *steps)


def _steps(job: PlanJob, split: RankSplit, batch: Batch) -> Iterator[str]:
    """What train.py does besides the wrapper: recomputation, precision, optimizer and accumulation."""
    if job.recompute == "full":
        yield "checkpoint every layer: torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)"
    elif job.recompute == "selective":
        yield (
            "checkpoint selectively: checkpoint(layer, x, use_reentrant=False, context_fn=partial("
            "create_selective_checkpoint_contexts, policy)), with a policy that saves attention and every second "
            "matrix product"
        )
    # FSDP's mixed-precision policy casts by itself; the other engines need autocast
    if job.precision == "bf16-true":
        yield "model.to(torch.bfloat16) before all else"
    elif job.precision in _AUTOCAST and split.engine == "autocast":
        yield f'forward pass and loss under torch.autocast("cuda", {_AUTOCAST[job.precision]})'
    if job.precision == "fp16":
        yield "torch.amp.GradScaler around loss and step"
    name = {"adamw": "AdamW", "momentum": "SGD", "sgd": "SGD"}.get(job.optimizer)
    if name is not None and not split.offload:
        yield f"torch.optim.{name}(..., fused=True): the default takes as much as the gradients again for a moment"
    if batch.accumulation == 1:
        return
    # without these, DDP and replicas exchange gradients for every micro-batch instead of once a step
    yield f"divide the loss by {batch.accumulation}, and step every {batch.accumulation} batches"
    if split.name == "ddp" and split.data > 1:
        yield "all but the last of them under model.no_sync()"
        # otherwise the gradients of the first micro-batches exist beside DDP's buckets
        yield "zero_grad(set_to_none=False), or DDP holds gradients twice"
    if split.shards < split.data and split.sharding == "parameters":
        yield "model.set_requires_all_reduce(False) for all but the last of them"


# Megatron-LM


def _megatron_options(job: PlanJob, split: RankSplit, batch: Batch) -> tuple[str, ...]:
    """The options, one line each; the user adds data, tokenizer, learning rate and the number of steps.

    Source: Megatron-LM, megatron/training/arguments.py.
    """
    # E is the embedding, t a layer, L the loss
    stages = "|".join(f"t*{layers}" for layers in layers_of_stages(job.shape.layers, split.pipeline))
    whole = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    switches = (
        (f'--pipeline-model-parallel-layout "E{stages}L"', job.shape.layers % split.pipeline > 0),
        ("--sequence-parallel", split.tensor > 1),
        ("--use-distributed-optimizer --overlap-grad-reduce", split.data > 1),
        (whole, job.recompute == "full"),
        (f"--{job.precision}", job.precision in ("bf16", "fp16")),
        (_OPTIMIZERS.get(job.optimizer, ""), job.optimizer in _OPTIMIZERS),
    )
    return (
        f"--tensor-model-parallel-size {split.tensor}",
        f"--pipeline-model-parallel-size {split.pipeline}",
        f"--micro-batch-size {batch.per_gpu} --global-batch-size {batch.global_batch} --seq-length {job.seq}",
        *(option for option, needed in switches if needed),
        *_model(job.shape, job.seq),
    )


def megatron_lacks(job: PlanJob, split: RankSplit) -> Iterator[str]:
    """The parts of the plan that Megatron-LM has no option for, as sentences; it shards only Adam's states."""
    how = "the plan counts its memory, and your program must provide it"
    if job.precision == "bf16-true":
        yield f"Megatron-LM has no option for bf16 weights without fp32 copies: {how}"
    if job.optimizer not in _OPTIMIZERS:
        yield f"Megatron-LM has no option for {job.optimizer}: {how}"
    elif job.optimizer != "adamw" and split.data > 1:
        yield f"Megatron-LM has no option for {job.optimizer} whose states are sharded: {how}"


def _model(shape: ModelShape, seq: int) -> tuple[str, ...]:
    bias = shape.out_bias and shape.mlp_bias
    positions = "learned_absolute" if shape.positions else "rope"
    grouped = f"--group-query-attention --num-query-groups {shape.kv_heads}"
    switches = (
        (grouped, shape.kv_heads != shape.heads),
        ("--swiglu", shape.gated),
        ("--disable-bias-linear", not bias),
        ("--add-qkv-bias", shape.qkv_bias and not bias),
        ("--qk-layernorm", shape.qk_norm),
        ("--untie-embeddings-and-output-weights", not shape.tied),
        (f"--num-experts {shape.experts} --moe-router-topk {shape.experts_per_token}", shape.experts > 1),
    )
    return (
        f"--num-layers {shape.layers} --hidden-size {shape.hidden} --ffn-hidden-size {shape.ffn}",
        f"--num-attention-heads {shape.heads} --kv-channels {shape.head_dim}",
        f"--max-position-embeddings {max(shape.max_seq, seq)} --position-embedding-type {positions}",
        f"--normalization {'LayerNorm' if shape.norm_bias else 'RMSNorm'}",
        *(option for option, needed in switches if needed),
    )
