"""What `gpudoctor plan` does not plan, and the rule of thumb for it."""

from __future__ import annotations

from msgspec.structs import replace

from gpudoctor.plan.machine import Machine
from gpudoctor.plan.memory import ALLOCATOR_SHARE, PlanJob, RankSplit, activation_parts, fsdp, gathered_parts, memory_of
from gpudoctor.plan.model_shape import ModelShape
from gpudoctor.text.units import gib_number, gib_text

NOT_PLANNED: dict[str, str] = {
    "lora": (
        "LoRA is not planned. Rule of thumb: the frozen weights take 2 bytes a parameter (7b: 14 GB; Hu et al., "
        "arXiv:2106.09685), 16 bytes for each parameter of the adapters (usually under 1 % of the model), and at most "
        "the activations of the same batch of the whole model"
    ),
    "qlora": (
        "QLoRA is not planned. Rule of thumb: the frozen weights take about half a byte a parameter (65b on one GPU of "
        "48 GB; Dettmers et al., arXiv:2305.14314), 16 bytes for each parameter of the adapters (usually under 1 % of "
        "the model), and at most the activations of the same batch of the whole model"
    ),
}
_FROZEN_BYTES = {"lora": 2.0, "qlora": 0.5}
_ADAPTERS, _ADAPTER_BYTES = 0.01, 16


def words_of(method: str, shape: ModelShape) -> str:
    """The rule of thumb with its figures for this model, without any GPU."""
    weights, adapters = _states(method, shape)
    return (
        f"{NOT_PLANNED[method]}. For {shape.name}: {gib_text(weights)} of frozen weights and at most "
        f"{gib_text(adapters)} for adapters of 1 %, over all GPUs that share them"
    )


def words_on(method: str, machine: Machine, job: PlanJob) -> str:
    """The rule of thumb with its figures for a GPU of this machine, sharded over all of them, and a verdict."""
    weights, adapters = (amount / machine.world for amount in _states(method, job.shape))
    rest, room = _rest(machine, job), machine.memory_bytes
    where = f", sharded over {machine.world} GPUs (FSDP)" if machine.world > 1 else ""
    left = room - weights - adapters
    figures = (
        f"{words_of(method, job.shape)}. A GPU of {gib_text(room)}: {gib_number(weights)} + {gib_text(adapters)}"
        f"{where}: "
    )
    if left <= 0:
        return f"{figures}these alone do not fit, {gib_text(-left)} too much"
    needs = f"one sequence of {job.seq} tokens with full recomputation takes at most {gib_text(rest)} more"
    verdict = "fits" if rest <= left else f"may not fit, {gib_text(rest - left)} too much"
    return f"{figures}{gib_text(left)} are left; {needs} (activations, allocator, CUDA): {verdict}"


def lora_fits(machine: Machine, job: PlanJob) -> bool:
    """Whether LoRA fits by the rule of thumb."""
    return sum(_states("lora", job.shape)) / machine.world + _rest(machine, job) <= machine.memory_bytes


def _states(method: str, shape: ModelShape) -> tuple[float, float]:
    """Bytes of the frozen weights and of the adapters, over all GPUs."""
    return shape.parameters * _FROZEN_BYTES[method], shape.parameters * _ADAPTERS * _ADAPTER_BYTES


def _rest(machine: Machine, job: PlanJob) -> float:
    """Bytes on a GPU beside frozen weights and adapters: of one sequence of the whole model, so rather too much."""
    split = fsdp(machine.world) if machine.world > 1 else RankSplit("ddp", 1)
    job = replace(job, recompute="full", micro_batch=1, micro_batches=1)
    retained, working, loss = activation_parts(job, split, 0)
    at_layer, at_loss, _ = gathered_parts(job, split)
    tensors = retained + max(working + at_layer, loss + at_loss)
    return tensors * (1 + ALLOCATOR_SHARE) + memory_of(job, split).framework
