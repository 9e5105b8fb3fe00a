"""The command that starts the training, and the lines of code or options that make it this strategy."""

from __future__ import annotations

import msgspec

from gpudoctor.plan.machine import Machine
from gpudoctor.plan.memory import Job
from gpudoctor.plan.settings import Batch, Setting
from gpudoctor.plan.split import Split

PORT = 29500


class Launch(msgspec.Struct, frozen=True):
    """`command` is to be typed; for several nodes it submits `script`, a Slurm batch file.

    `code` is what train.py does, or the options of Megatron-LM where the strategy is its.
    """

    command: str
    script: str | None
    code: tuple[str, ...]


def launch_of(
    machine: Machine,
    job: Job,
    split: Split,
    batch: Batch,
    settings: tuple[Setting, ...],
    bucket: Setting | None,
    every_gpu: bool,
) -> Launch:
    """`every_gpu`: the plan uses all GPUs of the node, so that none has to be hidden."""
    program = "pretrain_gpt.py" if split.engine == "megatron" else "train.py"
    variables = [f"{s.name}={s.value}" for s in settings]
    if not every_gpu:
        indices = ",".join(str(gpu.index) for gpu in machine.gpus)
        variables = ["CUDA_DEVICE_ORDER=PCI_BUS_ID", f"CUDA_VISIBLE_DEVICES={indices}", *variables]
    code = _code(job, split, batch, bucket)
    per_node = machine.gpus_per_node
    if machine.nodes == 1:
        command = f"torchrun --standalone --nproc-per-node {per_node} {program}"
        return Launch(" ".join([*variables, command]), None, code)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --nodes={machine.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={per_node}" if every_gpu else f"#SBATCH --gpus-per-node={_of_node(machine)}",
        "#SBATCH --exclusive",
        *(f"export {variable}" for variable in variables),
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"srun torchrun --nnodes {machine.nodes} --nproc-per-node {per_node} \\",
        f'  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:{PORT}" \\',
        f"  {program}",
    ]
    return Launch("sbatch plan.sbatch", "\n".join(lines) + "\n", code)


def _of_node(machine: Machine) -> int:
    return max(gpu.index for gpu in machine.gpus) + 1


def _code(job: Job, split: Split, batch: Batch, bucket: Setting | None) -> tuple[str, ...]:
    if split.engine == "megatron":
        return _megatron(job, split, batch)
    checkpoint = _recompute(job)
    # else the gradients of the first micro-batches lie beside DDP's buckets
    keep = (
        "; zero_grad(set_to_none=False), or DDP holds gradients twice" if split.name == "ddp" and split.data > 1 else ""
    )
    accumulate = (
        (f"divide the loss by {batch.accumulation}, and step every {batch.accumulation} batches{keep}",)
        if batch.accumulation > 1
        else ()
    )
    if split.world == 1 and not split.offload:
        return (*checkpoint, *accumulate) or ("one process on one GPU: no wrapper is needed",)
    if split.name == "ddp":
        how = "device_ids=[local_rank], gradient_as_bucket_view=True"
        size = f", {bucket.name}={bucket.value}" if bucket else ""
        return (f"DistributedDataParallel(model, {how}{size})", *checkpoint, *accumulate)
    lines = []
    mesh = ""
    if split.shards < split.data:
        replicas = split.data // split.shards
        lines.append(
            f'mesh = init_device_mesh("cuda", ({replicas}, {split.shards}), mesh_dim_names=("replicate", "shard"))'
        )
        mesh = ", mesh=mesh"
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(job.precision)
    policy = f", mp_policy=MixedPrecisionPolicy(torch.{dtype}, torch.float32)" if dtype else ""
    offload = ", offload_policy=CPUOffloadPolicy()" if split.offload else ""
    # embedding and head apart, or both are whole all the time; where they are one weight, they stay with the model
    parts = "model.layers" if job.shape.tied else "(model.embedding, *model.layers, model.head)"
    lines.append(f"for part in {parts}: fully_shard(part{mesh}{policy}{offload})")
    lines.append(f"fully_shard(model{mesh}{policy}{offload})")
    return (*lines, *checkpoint, *accumulate)


def _recompute(job: Job) -> tuple[str, ...]:
    if job.recompute == "full":
        return ("checkpoint every layer: torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)",)
    if job.recompute == "selective":
        return (
            "checkpoint selectively: checkpoint(..., context_fn=create_selective_checkpoint_contexts), which saves "
            "attention and every second matrix product",
        )
    return ()


def _megatron(job: Job, split: Split, batch: Batch) -> tuple[str, ...]:
    options = [
        f"--tensor-model-parallel-size {split.tensor}",
        f"--pipeline-model-parallel-size {split.pipeline}",
        f"--micro-batch-size {batch.per_gpu} --global-batch-size {batch.global_batch} --seq-length {job.seq}",
    ]
    if split.tensor > 1:
        options.append("--sequence-parallel")
    if split.data > 1:
        options.append("--use-distributed-optimizer --overlap-grad-reduce")
    if job.recompute == "full":
        options.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    if job.precision in ("bf16", "fp16"):
        options.append(f"--{job.precision}")
    return tuple(options)
