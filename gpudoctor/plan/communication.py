"""The traffic between GPUs in one step, and the time that it takes at the known rates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from gpudoctor.plan.machine import Machine
from gpudoctor.plan.memory import PlanJob, RankSplit, stage_parameters
from gpudoctor.plan.rates import Rate
from gpudoctor.plan.tensor_bytes import compute_bytes, state_bytes

Link = Literal["node", "network", "host"]


class LinkTraffic(msgspec.Struct, frozen=True):
    """One kind of traffic of one GPU in one step: `gb` over its slowest link in one direction.

    `hidden`: whether it can overlap with arithmetic.
    """

    what: str
    gb: float
    link: Link
    hidden: bool
    rate: Rate | str

    @property
    def seconds(self) -> float | None:
        return None if isinstance(self.rate, str) else self.gb / self.rate.value


class StepTime(msgspec.Struct, frozen=True):
    """The time of one optimizer step. `compute_s` is at the fastest known rate, so real steps take longer.

    `bubble` is the share of a step in which a pipeline stage waits. Efficiencies are upper bounds: `best` if
    everything that can be hidden is, `plain` if nothing is. None: a rate is not known.
    """

    traffic: tuple[LinkTraffic, ...]
    communication_s: float | None
    compute_s: float | None
    bubble: float
    best: float | None
    plain: float | None


def traffic_of(job: PlanJob, split: RankSplit, machine: Machine) -> tuple[LinkTraffic, ...]:
    """Everything that one GPU sends in one step.

    Formulas, with n ranks of a group, P parameters of the rank, m micro-batches, E bytes a value, G bytes a
    gradient, b s h values of a micro-batch's activations:
    DDP: all-reduce of gradients once a step, 2 (n-1)/n G P. ZeRO-1: reduce-scatter (n-1)/n G P and all-gather
    (n-1)/n E P once a step; ZeRO-2 reduces every micro-batch.
    FSDP: all-gather E P twice and reduce-scatter G P for every micro-batch, (n-1)/n each; replicas between
    nodes add an all-reduce of the shard, 2 (r-1)/r G P / n, once a step.
    Tensor: 4 times a layer and micro-batch (2 forward, 2 backward) an all-reduce of E b s h, 2 (t-1)/t each, as
    reduce-scatter and all-gather with sequence parallelism; the forward part twice if layers are recomputed.
    Pipeline: E b s h / t to the next stage and its gradient back, for every micro-batch.
    Ranks are laid out as in Megatron-LM: tensor nearest, then data, then pipeline.
    Offload: shards to the GPU twice and gradients back for every micro-batch.
    Source: nccl-tests doc/PERFORMANCE.md (bus factors); ZeRO (arXiv:1910.02054) section 7; PyTorch FSDP
    (arXiv:2304.11277); Megatron-LM (arXiv:1909.08053) section 3 and (arXiv:2104.04473) section 3.2.
    """
    kinds = (_data_traffic, _tensor_traffic, _pipeline_traffic)
    return tuple(part for kind in kinds for part in kind(job, split, machine) if part.gb > 0)


def step_time(job: PlanJob, split: RankSplit, machine: Machine) -> StepTime:
    """Time of a step and the bound on efficiency that communication leaves.

    Formula: c, the time of arithmetic: (6 A + 6 L q s) tokens FLOP, a third more with full recomputation, over
    all GPUs (A active parameters without an embedding that is only looked up, L layers, q width of the queries,
    s sequence; half of the 12 L q s of attention to all tokens, because flash attention skips what is masked).
    Bubble: (p-1)/(m+p-1).
    Efficiency: (1 - bubble) * c / (c + e), with e the time of communication that is not hidden (plain has all of
    it, best has what cannot be hidden and what exceeds c of the rest).
    Source: PaLM (arXiv:2204.02311) appendix B (FLOP) and FlashAttention-2 (arXiv:2307.08691) section 4.1 (causal:
    half); Narayanan et al. (arXiv:2104.04473) section 2.2 (bubble).
    """
    traffic = traffic_of(job, split, machine)
    bubble = (split.pipeline - 1) / (job.micro_batches + split.pipeline - 1)
    compute_s = _compute_seconds(job, split, machine)
    known = all(part.seconds is not None for part in traffic)
    total = sum(part.seconds or 0.0 for part in traffic) if known else None
    if compute_s is None or total is None:
        return StepTime(traffic, total, compute_s, bubble, None, None)
    exposed = sum(part.seconds or 0.0 for part in traffic if not part.hidden)
    left = exposed + max(total - exposed - compute_s, 0.0)
    best = (1 - bubble) * compute_s / (compute_s + left)
    plain = (1 - bubble) * compute_s / (compute_s + total)
    return StepTime(traffic, total, compute_s, bubble, best, plain)


def _compute_seconds(job: PlanJob, split: RankSplit, machine: Machine) -> float | None:
    """Seconds of arithmetic in one step on one GPU, by the formula in `step_time`."""
    if isinstance(machine.compute, str):
        return None
    shape = job.shape
    tokens = job.tokens * job.micro_batches * split.data
    attention = 6 * shape.layers * shape.query_width * job.seq
    flop = (6 * shape.multiplied_parameters + attention) * tokens * (4 / 3 if job.recompute == "full" else 1)
    return flop / split.world / (machine.compute.value * 1e12)


def _data_traffic(job: PlanJob, split: RankSplit, machine: Machine) -> Iterator[LinkTraffic]:
    if split.data == 1 and not split.offload:
        return
    parameters = max(stage_parameters(job.shape, split.pipeline, i) for i in range(split.pipeline)) / split.tensor
    per, m = state_bytes(split.engine, job.precision, job.optimizer), job.micro_batches
    gradients, weights = per.gradients * parameters / 1e9, compute_bytes(job.precision) * parameters / 1e9
    n = split.shards if split.sharding == "parameters" else split.data
    share = (n - 1) / n
    link: Link = "node"
    reduce_rate, rate = machine.collective, machine.gather
    if n * split.tensor > machine.gpus_per_node:
        link = "network"
        reduce_rate = rate = _across(machine, split.tensor)
    if split.sharding == "none":
        yield LinkTraffic("gradients: all-reduce", 2 * share * gradients, link, True, reduce_rate)
    elif split.sharding != "parameters":
        reduces = m if split.sharding == "gradients" else 1
        yield LinkTraffic("gradients: reduce-scatter", share * gradients * reduces, link, True, rate)
        yield LinkTraffic("new weights: all-gather", share * weights, link, False, rate)
    else:
        gathered = 2 * share * weights * m
        yield LinkTraffic("weights: all-gather, forward and backward", gathered, link, True, rate)
        yield LinkTraffic("gradients: reduce-scatter", share * gradients * m, link, True, rate)
        replicas = split.data // n
        if replicas > 1:
            shard = 2 * (replicas - 1) / replicas * gradients / n
            yield LinkTraffic("gradients of replicas: all-reduce", shard, "network", True, _per_gpu(machine))
        if split.offload:
            from_ram = 2 * per.weights * parameters / 1e9 * m / n
            yield LinkTraffic("weights from RAM, forward and backward", from_ram, "host", True, machine.host)
            yield LinkTraffic("gradients to RAM", gradients * m / n, "host", True, machine.host)


def _tensor_traffic(job: PlanJob, split: RankSplit, machine: Machine) -> Iterator[LinkTraffic]:
    t = split.tensor
    if t == 1:
        return
    layers = -(-job.shape.layers // split.pipeline)
    once = compute_bytes(job.precision) * job.tokens * job.shape.hidden / 1e9
    rounds = 6 if job.recompute == "full" else 4
    gb = rounds * layers * 2 * (t - 1) / t * once * job.micro_batches
    rate = machine.nvlink if t <= machine.nvlinked and t < machine.gpus_per_node else machine.gather
    link: Link = "node"
    if t > machine.gpus_per_node:
        rate, link = _across(machine, 1), "network"
    yield LinkTraffic("activations between tensor ranks: reduce-scatter, all-gather", gb, link, False, rate)


def _pipeline_traffic(job: PlanJob, split: RankSplit, machine: Machine) -> Iterator[LinkTraffic]:
    if split.pipeline == 1:
        return
    once = compute_bytes(job.precision) * job.tokens * job.shape.hidden / split.tensor / 1e9
    local = split.world <= machine.gpus_per_node
    rate = machine.gather if local else _per_gpu(machine)
    link: Link = "node" if local else "network"
    # forward to the next stage and backward to the previous one are the two directions of one link
    yield LinkTraffic("activations to the next stage", once * job.micro_batches, link, True, rate)


def _across(machine: Machine, apart: int) -> Rate | str:
    """The bus bandwidth of a group over nodes with members `apart` ranks apart: the network's, or the node's if lower.

    A ring enters and leaves each node through its adapters. If several groups divide the node's GPUs among them,
    they share the adapters.
    """
    if isinstance(machine.network, str):
        return machine.network
    groups = min(max(apart, 1), machine.gpus_per_node)
    network = machine.network.value / groups
    shared = f", shared by {groups} groups" if groups > 1 else ""
    rate = msgspec.structs.replace(machine.network, value=network, source=f"{machine.network.source}{shared}")
    inside = machine.gather
    if isinstance(inside, Rate) and machine.gpus_per_node > groups and inside.value < network:
        return inside
    return rate


def _per_gpu(machine: Machine) -> Rate | str:
    """Each GPU's share of the node's adapters, for groups with one GPU per node."""
    return _across(machine, machine.gpus_per_node)
