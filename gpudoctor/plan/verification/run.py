"""`gpudoctor plan --try`: runs a few steps of the planned strategy and compares memory and time with the prediction."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.load.devices import CPU_RANKS, Backend, devices_to_load
from gpudoctor.plan.communication import step_time
from gpudoctor.plan.machine import Machine
from gpudoctor.plan.memory import PlanJob, memory_of
from gpudoctor.plan.model import PlanVerification, PredictedPart, model_summary
from gpudoctor.plan.model_shape import layers_of_stages
from gpudoctor.plan.rates import Rate
from gpudoctor.plan.request import PlanRequest
from gpudoctor.plan.split import RankSplit
from gpudoctor.plan.verification.reduced_size import CPU_SIZE, GPU_SIZE, least_ranks, reduced_job, reduced_split
from gpudoctor.probes.plan_verification.messages import VerificationOrder
from gpudoctor.probes.runner.launch import ProbePlan, run_probes
from gpudoctor.probes.runner.messages import AnyMessage, UnusableTorch, VerificationSample
from gpudoctor.profiles.profile import NO_PROFILE
from gpudoctor.units import MIB

if TYPE_CHECKING:
    from gpudoctor.probes.plan_verification.messages import VerificationFigures

STEPS = 3
DEADLINE_S: dict[Backend, float] = {"nccl": 180.0, "gloo": 240.0}


class Devices(msgspec.Struct, frozen=True):
    """The devices to verify a plan on: these GPUs of this machine, or a number of CPU ranks."""

    backend: Backend
    gpus: tuple[Gpu, ...]
    ranks: int | None


def devices_of(node: Node, request: PlanRequest) -> Devices:
    """The devices to verify the plan on. Raises UserError, with what would work, if they may not be used."""
    found = devices_to_load(node, request.load)
    if isinstance(found, Missing):
        raise UserError(f"--try: {found.reason}")
    backend, gpus = found
    return Devices(backend, gpus, len(gpus) if backend == "nccl" else request.ranks)


def verify_plan(job: PlanJob, split: RankSplit, devices: Devices) -> PlanVerification:
    """Run a plan's job and split, scaled down, on these devices. Raises UserError for what no rank can run."""
    on_gpu = devices.backend == "nccl"
    ranks = devices.ranks or least_ranks(split, CPU_RANKS)
    small_split = reduced_split(split, ranks, job.shape.layers)
    asked, notes = _runnable(job, split, on_gpu=on_gpu)
    if not on_gpu:
        small_split = msgspec.structs.replace(small_split, offload=False)
    small = reduced_job(asked, small_split, GPU_SIZE if on_gpu else CPU_SIZE)
    figures: dict[int, VerificationFigures] = {}
    lacking: list[str] = []

    def hear(rank: int, message: AnyMessage) -> None:
        if isinstance(message, VerificationSample):
            figures[rank] = message.figures
        elif isinstance(message, UnusableTorch):  # this torch lacks what the strategy needs; the node is not at fault
            lacking.append(message.text)

    gpus = tuple((gpu.index, str(gpu.uuid), gpu.bus_id) for gpu in devices.gpus)
    order = order_of(small, small_split)
    plan = ProbePlan(devices.backend, ranks, gpus, probes=(), level="full", verification=order)
    limit_s = DEADLINE_S[devices.backend]
    measured = run_probes(plan, deadline_s=limit_s, probe_deadline_s=limit_s, on_message=hear)
    verification = PlanVerification(
        device="cuda" if on_gpu else "cpu",
        ranks=ranks,
        strategy=small_split.title if small_split.world > 1 else "one rank",
        model=model_summary(small.shape),
        precision=small.precision,
        optimizer=small.optimizer,
        seq=small.seq,
        micro_batch=small.micro_batch,
        micro_batches=small.micro_batches,
        recompute=small.recompute,
        notes=notes,
    )
    if len(figures) == ranks and not measured.problems:
        return compared(verification, small, small_split, figures)
    if lacking:
        raise UserError(f"--try: {lacking[0]}")
    return _failed(verification, measured)


def compared(
    verification: PlanVerification, job: PlanJob, split: RankSplit, figures: dict[int, VerificationFigures]
) -> PlanVerification:
    """The verification with the ranks' measurements and the predictions of the plan's formulas for the same job."""
    memory = memory_of(job, split, 0.0)
    fullest = max(figures.values(), key=lambda f: f.peak_bytes)
    predicted = memory.tensors
    rest = predicted - memory.weights - memory.optimizer
    measured_rest = fullest.peak_bytes - fullest.weights_bytes - fullest.optimizer_bytes
    rows = (
        ("weights", memory.weights, fullest.weights_bytes),
        ("optimizer", memory.optimizer, fullest.optimizer_bytes),
        ("gradients, activations, loss and what is gathered", rest, measured_rest),
    )
    gflops = min(f.gflops for f in figures.values())
    rates = [f.allreduce_gb_s for f in figures.values() if f.allreduce_gb_s is not None]
    exchange = min(rates) if rates else None
    step = step_time(job, split, _machine(split, gflops, exchange))
    parts_s = (step.compute_s or 0.0, step.communication_s or 0.0)
    losses = next(f.losses for _, f in sorted(figures.items()) if f.losses)
    return msgspec.structs.replace(
        verification,
        memory_predicted_mib=round(predicted / MIB, 2),
        memory_measured_mib=round(fullest.peak_bytes / MIB, 2),
        off=round(predicted / fullest.peak_bytes - 1, 4),
        # offloaded states are not in the GPU's memory
        parts=tuple(
            PredictedPart(name, round(a / MIB, 2), round(b / MIB, 2)) for name, a, b in rows if not split.offload
        ),
        step_predicted_s=_short(sum(parts_s) / (1 - step.bubble)),
        step_measured_s=_short(max(median(f.step_s) for f in figures.values())),
        compute_s=_short(parts_s[0]),
        communication_s=_short(parts_s[1]),
        gflops=_short(gflops),
        allreduce_gb_s=None if exchange is None else _short(exchange),
        losses=tuple(None if loss is None else round(loss, 4) for loss in losses),
    )


def order_of(job: PlanJob, split: RankSplit) -> VerificationOrder:
    """The job and its split as the message to the ranks."""
    assert job.optimizer in ("adamw", "momentum", "sgd")
    return VerificationOrder(
        model=job.shape,
        data=split.data,
        tensor=split.tensor,
        pipeline=split.pipeline,
        layers_of_stages=layers_of_stages(job.shape.layers, split.pipeline),
        sharded=split.sharding == "parameters",
        offload=split.offload,
        precision=job.precision,
        optimizer=job.optimizer,
        recompute=job.recompute,
        seq=job.seq,
        micro_batch=job.micro_batch,
        micro_batches=job.micro_batches,
        steps=STEPS,
    )


def _runnable(job: PlanJob, split: RankSplit, *, on_gpu: bool) -> tuple[PlanJob, tuple[str, ...]]:
    """The job as it can be run, and notes on what it leaves out of the plan. Raises UserError."""
    if job.optimizer in ("adamw-8bit", "lion"):
        nearest = "adamw" if job.optimizer == "adamw-8bit" else "momentum"
        raise UserError(f"--try: torch has no {job.optimizer}; the nearest that can be tried: --optimizer {nearest}")
    notes = []
    if not on_gpu and job.precision != "fp32":
        notes.append(f"in fp32: CPU ranks do not show {job.precision} on a GPU")
        job = msgspec.structs.replace(job, precision="fp32")
    if not on_gpu and split.offload:
        notes.append("states stay where they are: what a CPU rank holds is in RAM already")
    if split.sharding == "optimizer":
        notes.append("every rank keeps its optimizer states whole: torch has no such optimizer beside pipelines")
    if job.shape.experts > 1:
        notes.append(f"one dense MLP as wide as the {job.shape.experts_per_token} experts that process a token")
    return job, tuple(notes)


def _machine(split: RankSplit, gflops: float, exchange_gb_s: float | None) -> Machine:
    """The ranks as a machine with the rates that they have just measured."""
    compute = Rate(gflops / 1000, "measured on these ranks", measured=True)
    exchange: Rate | str = "one rank"
    if exchange_gb_s is not None:
        exchange = Rate(exchange_gb_s, "measured on these ranks", measured=True)
    ranks = tuple(Gpu(index=number, bus_id="") for number in range(split.world))
    # a rank's tensors stay where it computes: nothing is copied to RAM and back
    return Machine(
        ranks, 1, 0.0, split.world, True, exchange, exchange, exchange, exchange, compute, compute, None, NO_PROFILE,
    )  # fmt: skip


def _failed(verification: PlanVerification, measured: Measurements) -> PlanVerification:
    missing = measured.not_run.get("torch")
    if isinstance(missing, Missing) and missing.kind == "absent" and "pip install" in missing.reason:
        raise UserError(f"--try: {missing.reason}")
    problem = measured.problems[0] if measured.problems else None
    if problem is not None:
        return msgspec.structs.replace(verification, error=problem.text, error_kind=problem.kind)
    return msgspec.structs.replace(verification, error="the ranks sent no figures")


def _short(value: float) -> float:
    return float(f"{value:.4g}")
