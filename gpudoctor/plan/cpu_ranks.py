"""Plans for CPU ranks, to be verified on a machine without GPUs: the strategy that fits its RAM."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.api import Sourced
from gpudoctor.errors import UserError
from gpudoctor.load.devices import CPU_RANKS
from gpudoctor.plan.choose import nearest_split, undividable
from gpudoctor.plan.machine import ram_bytes
from gpudoctor.plan.memory import PlanJob, RankSplit, memory_of, model_split_name
from gpudoctor.plan.model import Plan, PlanRequest, model_summary, strategy
from gpudoctor.plan.model_shape import ModelShape, seq_of
from gpudoctor.plan.settings import batch_of, learning_rates
from gpudoctor.plan.strategies import Option
from gpudoctor.report.model import SourceSummary
from gpudoctor.units import gib_text


def cpu_plan(request: PlanRequest, shape: ModelShape, sourced: Sourced) -> tuple[Plan, Option]:
    """The simplest strategy for which the tensors of all CPU ranks together fit in RAM; fp32 by default.

    Raises UserError if none does. Settings, launch and times are left out, as they apply to GPUs only.
    """
    asked = {"--nodes": request.nodes > 1, "--global-batch": request.global_batch, "--report": request.report}
    for option, given in asked.items():
        if given:
            raise UserError(f"{option} plans GPUs, and there are none: leave it out, or plan on --node hgx-h100-8")
    seq, warnings = seq_of(request.seq, shape)
    ranks = request.ranks or CPU_RANKS
    room = ram_bytes(sourced.node)
    job = PlanJob(shape, request.precision or "fp32", request.optimizer, seq)
    options = tuple(_options(job, _splits(request, job, ranks), room))
    taken = next((option for option in options if option.works), None)
    if taken is None:
        least = min(option.memory.total for option in options if option.memory)
        there = "of unknown size" if room is None else f"of {gib_text(room, 0)}"
        raise UserError(
            f"{shape.name} does not fit {ranks} CPU ranks in RAM {there} (least: {gib_text(least)} a rank): plan "
            f"it for GPUs, and try it here: --node hgx-h100-8 --backend gloo --try"
        )
    node = sourced.node
    why = "one rank holds all of it" if taken.split.name == "ddp" else "the ranks hold it together"
    if request.tensor is not None or request.pipeline is not None:
        why = "--tensor and --pipeline request it"
    batch = batch_of(taken.job, taken.split)
    plan = Plan(
        source=SourceSummary(node.source.kind, node.source.name, node.source.faults),
        simulated=node.source.kind == "simulated",
        model=model_summary(shape),
        precision=job.precision,
        optimizer=job.optimizer,
        seq=seq,
        strategies=tuple(strategy(option) for option in options),
        recommended=strategy(taken),
        why=why,
        batch=batch,
        learning_rate=learning_rates(batch),
        warnings=(*warnings, "no GPU here: planned for CPU ranks, in RAM"),
    )
    return plan, taken


def _splits(request: PlanRequest, job: PlanJob, ranks: int) -> tuple[RankSplit, ...]:
    if request.tensor is None and request.pipeline is None:
        return (
            RankSplit("ddp", ranks),
            RankSplit("fsdp", ranks, sharding="parameters", shards=ranks, engine="sharded"),
        )
    tensor, pipeline = request.tensor or 1, request.pipeline or 1
    wrong = undividable(job, ranks, tensor, pipeline, "CPU ranks")
    if wrong is not None:
        near = nearest_split(job, ranks, tensor, pipeline, lambda *_: True)
        raise UserError(f"{wrong}; {near or 'leave --tensor and --pipeline out'}")
    if tensor * pipeline == 1:
        return (RankSplit("ddp", ranks),)
    return (RankSplit(model_split_name(tensor, pipeline), ranks // (tensor * pipeline), tensor, pipeline),)


def _options(job: PlanJob, splits: tuple[RankSplit, ...], room: float | None) -> Iterator[Option]:
    """The options with the memory of one rank's tensors; all fit if the RAM is not known: the tried model is small."""
    for split in splits:
        memory = msgspec.structs.replace(memory_of(job, split, 0.0), framework=0.0)
        over = 0.0 if room is None else memory.total * split.world - room
        reason = f"{gib_text(over)} of RAM too much" if over > 0 else ""
        yield Option(split, job, "no" if over > 0 else "fits", memory, reason)
