"""Every way to divide a model over a machine, with the memory of one GPU for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from gpudoctor.plan.machine import Machine
from gpudoctor.plan.memory import Memory, PlanJob, RankSplit, Sharding, fsdp, memory_of, model_split_name
from gpudoctor.plan.tensor_bytes import RECOMPUTES, Recompute
from gpudoctor.text.units import gib_number, gib_text

Fit = Literal["fits", "tight", "no", "not here"]
LARGEST_MICRO_BATCH = 64
# GPipe (arXiv:1811.06965) section 2.3: the bubble is negligible from 4 micro-batches per stage on
MICRO_BATCHES_A_STAGE = 4


class Option(msgspec.Struct, frozen=True):
    """A strategy that was tried. `job` has the batch and recomputation with which it fits or comes nearest.

    `tight`: it fits only if the caching allocator wastes nothing. `not here`: not tried, with the reason.
    """

    split: RankSplit
    job: PlanJob
    fit: Fit
    memory: Memory | None = None
    reason: str = ""

    @property
    def works(self) -> bool:
        return self.fit in ("fits", "tight")


def each_option(machine: Machine, job: PlanJob, global_batch: int | None) -> Iterator[Option]:
    """Each strategy on this machine, from the simplest to the most involved."""
    for split in _data_splits(machine):
        yield tried(machine, job, split, global_batch)
    if machine.world > 1:
        yield from _model_options(machine, job, global_batch)


def tried(machine: Machine, job: PlanJob, split: RankSplit, global_batch: int | None) -> Option:
    """One strategy with the least recomputation that fits, and the largest micro-batch that still does."""
    per_rank = None
    if global_batch is not None:
        if global_batch % split.data:
            reason = f"a global batch of {global_batch} does not divide over {split.data} data-parallel ranks"
            return Option(split, job, "not here", None, reason)
        per_rank = global_batch // split.data
    # Megatron-LM's "selective" drops only attention scores, which flash attention does not keep anyway
    recomputes: tuple[Recompute, ...] = ("none", "full") if split.engine == "megatron" else RECOMPUTES
    best: Option | None = None
    for expected in ("fits", "tight"):
        for recompute in recomputes:
            option = _option_at(machine, job, split, recompute, 1, per_rank)
            if option.fit == expected:
                return _larger(machine, option, per_rank)
            if best is None or option.memory is None or best.memory is None or option.memory.total < best.memory.total:
                best = option
    assert best is not None
    return best


def _option_at(
    machine: Machine, job: PlanJob, split: RankSplit, recompute: Recompute, micro_batch: int, per_rank: int | None
) -> Option:
    if per_rank is not None:
        micro_batches = max(per_rank // micro_batch, 1)
    else:
        micro_batches = MICRO_BATCHES_A_STAGE * split.pipeline if split.pipeline > 1 else 1
    job = msgspec.structs.replace(job, recompute=recompute, micro_batch=micro_batch, micro_batches=micro_batches)
    memory = memory_of(job, split)
    room = machine.memory_bytes
    fit, reason = _fit_of(memory, room), ""
    if split.offload:
        ranks = machine.gpus_per_node
        if machine.ram_bytes is None:
            return Option(split, job, "not here", None, "the node's RAM is not known: give --ram GIB")
        if memory.host * ranks > machine.ram_bytes:
            needed, free = gib_text(memory.host * ranks, 0), gib_number(machine.ram_bytes, 0)
            fit, reason = "no", f"{needed} of RAM a node are needed, {free} are free"
    if fit == "no" and not reason:
        reason = f"{gib_text(memory.total - room)} too much"
    return Option(split, job, fit, memory, reason)


def _fit_of(memory: Memory, room: float) -> Fit:
    """How so much memory fits into a GPU with `room` bytes."""
    if memory.total <= room:
        return "fits"
    return "tight" if memory.total - memory.allocator <= room else "no"


def _larger(machine: Machine, option: Option, per_rank: int | None) -> Option:
    """The option with the largest micro-batch, a power of two that divides the rank's batch, that fits equally well."""
    best = option
    fewest = MICRO_BATCHES_A_STAGE * option.split.pipeline if option.split.pipeline > 1 else 0
    micro_batch = 2
    while micro_batch <= LARGEST_MICRO_BATCH:
        if per_rank is not None and (per_rank % micro_batch or per_rank // micro_batch < fewest):
            break
        larger = _option_at(machine, option.job, option.split, option.job.recompute, micro_batch, per_rank)
        if larger.fit != option.fit:
            break
        best = larger
        micro_batch *= 2
    return best


def _data_splits(machine: Machine) -> Iterator[RankSplit]:
    world, node = machine.world, machine.gpus_per_node
    yield RankSplit("ddp", world)
    if world > 1:
        yield RankSplit("zero1", world, sharding="optimizer", shards=world, engine="zero")
        yield RankSplit("zero2", world, sharding="gradients", shards=world, engine="zero")
        if machine.nodes > 1 and node > 1:
            yield fsdp(world, node)
        yield fsdp(world)
    yield fsdp(world, offload=True)


def _model_options(machine: Machine, job: PlanJob, global_batch: int | None) -> Iterator[Option]:
    shape = job.shape
    # the largest tensor-parallel group inside NVLink that divides the node and the model
    tensor = max(t for t in range(1, machine.nvlinked + 1) if machine.gpus_per_node % t == 0 and tensor_divides(job, t))
    if tensor > 1:
        yield tried(machine, job, megatron(machine, tensor, 1), global_batch)
    else:
        reason = "no NVLink joins these GPUs, and every layer would wait for the slower link"
        if not machine.topology_read:
            reason = "it is not known whether NVLink joins these GPUs"
        if machine.nvlinked > 1:
            what = f"{shape.heads} heads, {shape.kv_heads} key-value heads, ffn {shape.ffn} and {job.seq} tokens"
            reason = f"no group of 2 to {machine.nvlinked} GPUs divides {what}"
        yield Option(RankSplit("tensor", 1), job, "not here", None, reason)
    for ways in sorted({1, tensor}):
        yield _first_that_fits(machine, job, ways, global_batch)


def tensor_divides(job: PlanJob, ways: int) -> bool:
    """Whether so many tensor-parallel ranks get equal parts.

    Rule: heads, key-value heads, the MLP's width, and with sequence parallelism the tokens of a sequence; the
    vocabulary is padded.
    Source: Megatron-LM, which does not start otherwise.
    """
    shape = job.shape
    return all(size % ways == 0 for size in (shape.heads, shape.kv_heads, shape.ffn, job.seq))


def megatron(machine: Machine, tensor: int, pipeline: int) -> RankSplit:
    """Tensor and pipeline parallelism; data parallelism over the other ranks, which shard the optimizer."""
    data = machine.world // (tensor * pipeline)
    sharding: Sharding = "optimizer" if data > 1 else "none"
    return RankSplit(model_split_name(tensor, pipeline), data, tensor, pipeline, sharding, data, engine="megatron")


def _first_that_fits(machine: Machine, job: PlanJob, tensor: int, global_batch: int | None) -> Option:
    """Pipeline parallelism with the fewest stages that fit (the smallest bubble), else with the most possible."""
    ranks = machine.world // tensor
    stages = [p for p in range(2, min(ranks, job.shape.layers) + 1) if ranks % p == 0]
    if not stages:
        reason = f"{ranks} ranks cannot be divided into stages of {job.shape.layers} layers"
        if tensor > 1 and ranks == 1:
            reason = "tensor parallelism already takes every GPU"
        return Option(RankSplit(model_split_name(tensor, 2), 1), job, "not here", None, reason)
    for pipeline in stages:
        option = tried(machine, job, megatron(machine, tensor, pipeline), global_batch)
        if option.fit == "fits":
            return option
    return option
