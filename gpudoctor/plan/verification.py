"""`gpudoctor plan --try`: runs a few steps of the planned strategy and compares memory and time with the prediction."""

from __future__ import annotations

from statistics import median

import msgspec

from gpudoctor.api.load.devices import CPU_RANKS, devices_to_load
from gpudoctor.api.load.request import Backend
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.plan.communication import step_time
from gpudoctor.plan.machine import Machine
from gpudoctor.plan.memory import PlanJob, RankSplit, fsdp, memory_of
from gpudoctor.plan.model import PlanRequest, PlanVerification, PredictedPart, model_summary, short
from gpudoctor.plan.model_shape import layers_of_stages
from gpudoctor.plan.rates import Rate
from gpudoctor.probes.plan_verification.messages import VerificationFigures, VerificationOrder
from gpudoctor.probes.runner.launch import ProbePlan, run_probes
from gpudoctor.probes.runner.messages import RankMessage, UnusableTorch, VerificationSample
from gpudoctor.profiles.profile import NO_PROFILE
from gpudoctor.text.units import MIB

STEPS = 3
DEADLINE_S: dict[Backend, float] = {"nccl": 180.0, "gloo": 240.0}
LARGEST_MICRO_BATCHES = 2  # of one step, if there is no pipeline


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
    least = _least_tensor(split) * (2 if split.pipeline > 1 else 1)  # as many as every kind of parallelism needs
    ranks = devices.ranks or max(CPU_RANKS if split.tensor == 1 else 1, least)
    small_split = reduced_split(split, ranks, job.shape.layers)
    small_split = msgspec.structs.replace(small_split, offload=small_split.offload and on_gpu)
    asked, notes = _runnable(job, split, on_gpu=on_gpu)
    small = reduced_job(asked, small_split, GPU_SIZE if on_gpu else CPU_SIZE)
    figures: dict[int, VerificationFigures] = {}
    lacking: list[str] = []

    def hear(rank: int, message: RankMessage) -> None:
        if isinstance(message, VerificationSample):
            figures[rank] = message.figures
        elif isinstance(message, UnusableTorch):  # this torch lacks what the strategy needs; the node is not at fault
            lacking.append(message.text)

    gpus = tuple((gpu.index, str(gpu.uuid), gpu.bus_id) for gpu in devices.gpus)
    plan = ProbePlan(devices.backend, ranks, gpus, probes=(), level="full", verification=order_of(small, small_split))
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
        step_predicted_s=short(sum(parts_s) / (1 - step.bubble)),
        step_measured_s=short(max(median(f.step_s) for f in figures.values())),
        compute_s=short(parts_s[0]),
        communication_s=short(parts_s[1]),
        gflops=short(gflops),
        allreduce_gb_s=short(exchange),
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
    for problem in measured.problems:
        return msgspec.structs.replace(verification, error=problem.text, error_kind=problem.kind)
    return msgspec.structs.replace(verification, error="the ranks sent no figures")


# The job that is run: the planned model scaled down, and its split on the available ranks.


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
        return fsdp(ranks, offload=split.offload)
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
    nearest = _nearest_ranks(split, ranks, layers)
    raise UserError(
        f"--ranks {ranks}: {split.title} cannot be tried on so many; the nearest that works: --ranks {nearest}"
    )


def _nearest_ranks(split: RankSplit, ranks: int, layers: int) -> int:
    few = _least_tensor(split)
    if split.tensor > 1 and split.pipeline > 1:
        return few * min(max(ranks // few, 2), layers)
    if split.pipeline > 1:
        return min(ranks, layers)
    return max(t for t in range(few, split.tensor + 1) if split.tensor % t == 0 and t <= max(ranks, few))


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
    expected = shape.query_width * share
    kv_heads = tensor * max(1, round(expected / (group * min(shape.head_dim, size.head_dim) * tensor)))
    head_dim = max(8, round(expected / (group * kv_heads) / 8) * 8)
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
