"""The plan as data: the request, and everything that the text and the JSON (`gpudoctor.plan/1`) show."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from gpudoctor.api.load.request import Backend, LoadRequest
from gpudoctor.errors import UserError
from gpudoctor.plan.communication import StepTime
from gpudoctor.plan.launch import LaunchScript
from gpudoctor.plan.machine import Machine
from gpudoctor.plan.memory import Memory
from gpudoctor.plan.model_shape import ModelShape
from gpudoctor.plan.node_health import FaultMeaning
from gpudoctor.plan.rates import Rate
from gpudoctor.plan.settings import Batch, LearningRate, Setting
from gpudoctor.plan.strategies import Fit, Option
from gpudoctor.plan.tensor_bytes import Optimizer, Precision, Recompute
from gpudoctor.report.model import SourceSummary, Tool
from gpudoctor.text.units import GIB


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `gpudoctor plan`, with their meaning; `model` is a size or the path of a config.json.

    `precision` None: what the GPUs support. `ram`: GiB of a node's RAM that are free, instead of what was read.
    `tensor` and `pipeline` None: chosen. `verify` runs a few steps of the plan; `backend`, `ranks` and `force` select
    the devices. Raises UserError if these are given without `verify`.
    """

    model: str
    nodes: int = 1
    gpu: str | None = None
    ram: int | None = None
    seq: int | None = None
    precision: Precision | None = None
    optimizer: Optimizer = "adamw"
    global_batch: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    explain: bool = False
    verify: bool = False
    backend: Backend | Literal["auto"] | None = None
    ranks: int | None = None
    force: bool = False
    report: Path | None = None
    config: Path | None = None

    def __post_init__(self) -> None:
        for option, given in (("--backend", self.backend), ("--ranks", self.ranks), ("--force", self.force or None)):
            if given is not None and not self.verify:
                raise UserError(f"{option} selects the devices of --try: add --try, or leave {option} out")

    @property
    def load(self) -> LoadRequest:
        """The devices to verify the plan on."""
        return LoadRequest(self.backend or "auto", self.gpu, self.ranks, force=self.force)


class Speed(msgspec.Struct, frozen=True):
    """A rate; `value` is null if it is not known; `source` is then the reason."""

    value: float | None
    unit: str
    source: str
    measured: bool = False
    at_most: bool = False


class MemoryGib(msgspec.Struct, frozen=True):
    """Memory of the fullest GPU by part, in GiB; `host_gib` is RAM a rank."""

    total_gib: float
    weights_gib: float
    gradients_gib: float
    optimizer_gib: float
    activations_gib: float
    gathered_gib: float
    allocator_gib: float
    framework_gib: float
    host_gib: float


class PlannedStrategy(msgspec.Struct, frozen=True):
    """A strategy tried, with the batch and recomputation that its memory is for."""

    name: str
    title: str
    fit: Fit
    reason: str
    data: int
    tensor: int
    pipeline: int
    shards: int
    recompute: Recompute
    micro_batch: int
    micro_batches: int
    memory: MemoryGib | None


class TrafficRow(msgspec.Struct, frozen=True):
    what: str
    link: str
    gb: float
    seconds: float | None
    hidden: bool
    rate: Speed


class Communication(msgspec.Struct, frozen=True):
    """One step. Efficiencies are upper bounds; null if a rate is not known."""

    traffic: tuple[TrafficRow, ...]
    communication_s: float | None
    compute_s: float | None
    compute: Speed
    bubble: float
    efficiency_hidden: float | None
    efficiency_not_hidden: float | None


class ModelSummary(msgspec.Struct, frozen=True):
    name: str
    origin: str
    family: str
    parameters: int
    active_parameters: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int


class MachineSummary(msgspec.Struct, frozen=True):
    """`memory_gib`: what a program can have of the smallest GPU; `nvlinked`: GPUs joined by NVLink, each with each."""

    nodes: int
    gpus_per_node: int
    gpus: tuple[int, ...]
    gpu_names: str
    memory_gib: float
    nvlinked: int
    topology_read: bool
    collective: Speed
    gather: Speed
    nvlink: Speed
    network: Speed
    host: Speed


class PredictedPart(msgspec.Struct, frozen=True):
    """One part of the fullest rank's memory, as its tensors store it."""

    part: str
    predicted_mib: float
    measured_mib: float


class PlanVerification(msgspec.Struct, frozen=True):
    """What was tried, and the result. If `error` is set, figures are null.

    `device`: cpu means CPU ranks, whose times do not apply to GPUs. Memory is that of tensors on the rank that held
    most, without CUDA's context and the allocator's reserve. `off` is predicted over measured, less 1.
    Times are of one step, median of the slowest rank; predicted with nothing hidden, at the rates that these ranks
    reached just before (`gflops` of the slowest, `allreduce_gb_s` of all).
    """

    device: Literal["cuda", "cpu"]
    ranks: int
    strategy: str
    model: ModelSummary
    precision: str
    optimizer: str
    seq: int
    micro_batch: int
    micro_batches: int
    recompute: str
    notes: tuple[str, ...] = ()
    memory_predicted_mib: float | None = None
    memory_measured_mib: float | None = None
    off: float | None = None
    parts: tuple[PredictedPart, ...] = ()
    step_predicted_s: float | None = None
    step_measured_s: float | None = None
    compute_s: float | None = None
    communication_s: float | None = None
    gflops: float | None = None
    allreduce_gb_s: float | None = None
    losses: tuple[float | None, ...] = ()
    error: str | None = None
    error_kind: str | None = None


class Plan(msgspec.Struct, frozen=True):
    """One plan. `error` is set if there is none (exit 2), and then nothing else is."""

    schema: Literal["gpudoctor.plan/1"] = "gpudoctor.plan/1"
    tool: Tool = Tool()
    source: SourceSummary | None = None
    simulated: bool = False
    model: ModelSummary | None = None
    machine: MachineSummary | None = None
    precision: Precision | None = None
    optimizer: Optimizer | None = None
    seq: int | None = None
    strategies: tuple[PlannedStrategy, ...] = ()
    recommended: PlannedStrategy | None = None
    why: str | None = None
    instead: tuple[str, ...] = ()
    batch: Batch | None = None
    learning_rate: tuple[LearningRate, ...] = ()
    bucket: Setting | None = None
    communication: Communication | None = None
    wanted: tuple[Setting, ...] = ()
    harmful: tuple[Setting, ...] = ()
    left_out: tuple[tuple[int, str], ...] = ()
    troubles: tuple[FaultMeaning, ...] = ()
    warnings: tuple[str, ...] = ()
    launch: LaunchScript | None = None
    verification: PlanVerification | None = msgspec.field(default=None, name="trial")
    formulas: tuple[str, ...] = ()
    error: str | None = None


def speed(rate: Rate | str, unit: str = "GB/s") -> Speed:
    if isinstance(rate, str):
        return Speed(None, unit, rate)
    return Speed(round(rate.value, 3), unit, rate.source, rate.measured, rate.at_most)


def model_summary(shape: ModelShape) -> ModelSummary:
    return msgspec.convert(shape, ModelSummary, from_attributes=True)


def machine_summary(machine: Machine) -> MachineSummary:
    return MachineSummary(
        nodes=machine.nodes,
        gpus_per_node=machine.gpus_per_node,
        gpus=tuple(gpu.index for gpu in machine.gpus),
        gpu_names=machine.gpu_names,
        memory_gib=_gib(machine.memory_bytes),
        nvlinked=machine.nvlinked,
        topology_read=machine.topology_read,
        collective=speed(machine.collective),
        gather=speed(machine.gather),
        nvlink=speed(machine.nvlink),
        network=speed(machine.network),
        host=speed(machine.host),
    )


def strategy(option: Option) -> PlannedStrategy:
    split, job = option.split, option.job
    return PlannedStrategy(
        split.name, split.title, option.fit, option.reason, split.data, split.tensor, split.pipeline, split.shards,
        job.recompute, job.micro_batch, job.micro_batches, _memory(option.memory) if option.memory else None,
    )  # fmt: skip


def communication_summary(step: StepTime, machine: Machine) -> Communication:
    return Communication(
        traffic=tuple(
            TrafficRow(part.what, part.link, round(part.gb, 4), short(part.seconds), part.hidden, speed(part.rate))
            for part in step.traffic
        ),
        communication_s=short(step.communication_s),
        compute_s=short(step.compute_s),
        compute=speed(machine.compute, "TFLOP/s"),
        bubble=round(step.bubble, 4),
        efficiency_hidden=short(step.best),
        efficiency_not_hidden=short(step.plain),
    )


def _memory(memory: Memory) -> MemoryGib:
    parts = (name.removesuffix("_gib") for name in MemoryGib.__struct_fields__)
    return MemoryGib(*(_gib(getattr(memory, part)) for part in parts))


def _gib(amount: float) -> float:
    return round(amount / GIB, 3)


def short(value: float | None) -> float | None:
    """The value with four significant digits."""
    return None if value is None else float(f"{value:.4g}")
