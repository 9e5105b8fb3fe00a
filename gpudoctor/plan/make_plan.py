"""Makes a plan for GPUs, or for CPU ranks to be verified without any: judges the facts and chooses a strategy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from inspect import cleandoc
from itertools import takewhile
from pathlib import Path

import msgspec

from gpudoctor.api.config import config_of_host, load_config
from gpudoctor.api.load.devices import CPU_RANKS
from gpudoctor.api.node_check import Sourced
from gpudoctor.checks.core.registry import all_checks
from gpudoctor.checks.core.scope import scope_of
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy import lazy_imports, lazy_pattern
from gpudoctor.plan import communication, memory, model_sizes, settings, strategies, tensor_bytes
from gpudoctor.plan.choose import choose, choose_forced, nearest_split, undividable
from gpudoctor.plan.communication import StepTime, step_time
from gpudoctor.plan.hf_config import shape_of_config
from gpudoctor.plan.launch import launch_of, megatron_lacks
from gpudoctor.plan.machine import Machine, compute_capability, machine_of, ram_bytes, usable_gpus
from gpudoctor.plan.memory import PlanJob, RankSplit, fsdp, memory_of, model_split_name
from gpudoctor.plan.model import Plan, PlanRequest, communication_summary, machine_summary, model_summary, strategy
from gpudoctor.plan.model_shape import ModelError, ModelShape, seq_of
from gpudoctor.plan.model_sizes import is_size, shape_of_size
from gpudoctor.plan.node_health import FaultMeaning, check_node, meaning, measurements_of, mended, troubles, unfit_gpus
from gpudoctor.plan.settings import batch_of, bucket_of, harmful_settings, learning_rates, wanted_settings
from gpudoctor.plan.strategies import Option
from gpudoctor.plan.tensor_bytes import Precision, optimizer_bytes, state_bytes
from gpudoctor.profiles.load import profile_for
from gpudoctor.profiles.profile import Profile
from gpudoctor.report.model import Report, SourceSummary
from gpudoctor.text.output import printable
from gpudoctor.text.units import GIB, gib_text

with lazy_imports():
    from gpudoctor.plan import verification

_SIZE_WITHIN = lazy_pattern(r"(?<![\w.])(\d{1,4}(?:\.\d{1,3})?[mb])(?![a-z0-9])")
_RAISES = lazy_pattern(r"\s*\bRaises? \w+Error\b[^.]*\.")
# every formula with its source, taken from the docstring of the function that computes it
FORMULAS: tuple[tuple[str, Callable[..., object]], ...] = (
    ("Shape of an unpublished size", model_sizes.made_shape),
    ("Bytes of weights, gradients and optimizer", state_bytes),
    ("Optimizer states", optimizer_bytes),
    ("Sharding", memory.sharded_states),
    ("Parameters of a pipeline stage", memory.stage_parameters),
    ("Gradients at the peak", memory.gradients_persist),
    ("Activations of one layer", tensor_bytes.layer_bytes),
    ("Activations with recomputation", tensor_bytes.kept_bytes),
    ("Gradients of activations", tensor_bytes.backward_bytes),
    ("Activations of a stage", memory.activation_parts),
    ("The loss", tensor_bytes.loss_bytes),
    ("What FSDP gathers", memory.gathered_parts),
    ("Memory of a GPU", memory.memory_of),
    ("Choice", choose),
    ("Tensor-parallel ranks", strategies.tensor_divides),
    ("Traffic of a step", communication.traffic_of),
    ("Time of a step", communication.step_time),
    ("Learning rate", settings.learning_rates),
    ("Bucket size", settings.bucket_of),
    ("Settings to use", settings.wanted_settings),
    ("Settings to avoid", settings.harmful_settings),
)


def planned(request: PlanRequest, shape: ModelShape, sourced: Sourced) -> Plan:
    """The plan for a model on a node, verified if the request says so. Raises UserError."""
    if not request.verify:
        return make_plan(request, shape, sourced)[0]
    devices = verification.devices_of(sourced.node, request)  # before the plan: a verification may be refused
    made, taken = (make_plan if sourced.node.gpus else cpu_plan)(request, shape, sourced)
    return msgspec.structs.replace(made, verification=verification.verify_plan(taken.job, taken.split, devices))


class Ground(msgspec.Struct, frozen=True):
    """What a plan stands on: the GPUs that may be used as a machine, the job, and what was read and found on the way.

    `report` is None of a node that nobody has read.
    """

    machine: Machine
    job: PlanJob
    measurements: Measurements | None
    report: Report | None
    scope: tuple[int, ...] | None
    unfit: dict[int, str]
    warnings: tuple[str, ...]


def ground_of(request: PlanRequest, shape: ModelShape, sourced: Sourced) -> Ground:
    """The machine and the job of a request. Raises UserError if no GPU can be planned on."""
    node = sourced.node
    measured = sourced.measurements if request.report is None else measurements_of(request.report, node)
    # measurements of CPU ranks do not apply to GPUs
    on_gpus = measured is not None and measured.launch is not None and measured.launch.backend == "nccl"
    measurements = measured if on_gpus else None
    checks = all_checks()
    newer: list[str] = []  # keys of the file that this version does not know
    config = load_config(request.config, os.environ, all_checks, left_out=newer.append)
    config = config_of_host(config, known(node.host.hostname))
    unread = node.source.kind == "profile"  # nothing was read, so nothing can be at fault
    report = None if unread else check_node(node, measurements, checks, config, request.gpu)
    scope, _ = scope_of(node, request.gpu)
    unfit = unfit_gpus(report) if node.gpus else {}
    gpus = usable_gpus(node, scope, unfit)
    precision, warnings = _precision(request.precision, gpus, profile_for(node))
    seq, seq_warnings = seq_of(request.seq, shape)
    machine = machine_of(node, gpus, request.nodes, precision, measurements)
    if request.ram is not None:
        machine = msgspec.structs.replace(machine, ram_bytes=float(request.ram * GIB))
        warnings = (*warnings, f"--ram says {request.ram} GiB of free RAM a node, and that is believed")
    job = PlanJob(shape, precision, request.optimizer, seq)
    warnings = (*(f"configuration: {line}" for line in newer), *warnings, *seq_warnings)
    return Ground(machine, job, measurements, report, scope, unfit, warnings)


def make_plan(request: PlanRequest, shape: ModelShape, sourced: Sourced) -> tuple[Plan, Option]:
    """The plan for a model on a node, and the option that it recommends. Raises UserError."""
    node, ground = sourced.node, ground_of(request, shape, sourced)
    machine, job, measurements = ground.machine, ground.job, ground.measurements
    if request.tensor is None and request.pipeline is None:
        choice = choose(machine, job, request.global_batch)
    else:
        choice = choose_forced(machine, job, request.global_batch, request.tensor or 1, request.pipeline or 1)
    taken = choice.taken
    step = step_time(taken.job, taken.split, machine)
    expected = tuple(wanted_settings(machine, taken.split, node))
    bucket = bucket_of(taken.job, taken.split, measurements)
    warnings = (
        *ground.warnings,
        *choice.warnings,
        *_warnings(request, ground, taken, step),
        *node.source.notes,
    )
    made = msgspec.structs.replace(
        _plan_of(node, job, choice.options, taken, choice.why, warnings),
        machine=machine_summary(machine),
        instead=choice.instead,
        bucket=bucket,
        communication=communication_summary(step, machine),
        wanted=expected,
        harmful=tuple(harmful_settings(machine, node)),
        left_out=tuple(
            (i, why) for i, why in sorted(ground.unfit.items()) if ground.scope is None or i in ground.scope
        ),
        troubles=tuple(_meant(trouble, node, ground, taken, step) for trouble in troubles(ground.report, ground.unfit)),
        launch=launch_of(machine, taken.job, taken.split, expected, bucket, len(machine.gpus) == len(node.gpus)),
        formulas=formulas() if request.explain else (),
    )
    return made, taken


def _plan_of(
    node: Node, job: PlanJob, options: tuple[Option, ...], taken: Option, why: str, warnings: tuple[str, ...]
) -> Plan:
    """What every plan has, also one for CPU ranks."""
    batch = batch_of(taken.job, taken.split)
    return Plan(
        source=SourceSummary(node.source.kind, node.source.name, node.source.faults),
        simulated=node.source.kind == "simulated",
        model=model_summary(job.shape),
        precision=job.precision,
        optimizer=job.optimizer,
        seq=job.seq,
        strategies=tuple(strategy(option) for option in options),
        recommended=strategy(taken),
        why=why,
        batch=batch,
        learning_rate=learning_rates(batch),
        warnings=warnings,
    )


def shape_of(model: str) -> ModelShape:
    """The shape of a model given as a size or a config.json. Raises ModelError for anything else."""
    if is_size(model):
        return shape_of_size(model)
    if not model.strip():
        raise ModelError("MODEL_SIZE is empty: write 350m, 7b or 1.5b, or give the path of a config.json")
    digits = "".join(takewhile(lambda c: c in "0123456789.", model.replace(",", ".")))
    size = _SIZE_WITHIN.search(model.lower())
    if size and not digits and is_size(size[1]) and not os.path.lexists(model):
        raise ModelError(f"{printable(model)[:60]}: no such file; did you mean {size[1]}? Or give a config.json")
    if digits and is_size(f"{digits}b") and not os.path.lexists(model):
        raise ModelError(
            f"{printable(model)[:60]} is no size: did you mean {digits}b? Sizes end in m or b; or give a file"
        )
    return shape_of_config(Path(model))


def _meant(trouble: FaultMeaning, node: Node, ground: Ground, taken: Option, step: StepTime) -> FaultMeaning:
    """The trouble and its cost, compared with the same plan on a machine whose PCIe links are all healthy."""
    machine = ground.machine
    gpus = tuple(mended(gpu) if gpu.index in trouble.gpus else gpu for gpu in machine.gpus)
    whole = msgspec.structs.replace(node, gpus=tuple(mended(g) if g.index in trouble.gpus else g for g in node.gpus))
    sound = machine_of(whole, gpus, machine.nodes, taken.job.precision, ground.measurements)
    after = step_time(taken.job, taken.split, sound)
    return msgspec.structs.replace(trouble, means=meaning(trouble, machine, step, after, sound.host))


def _precision(asked: Precision | None, gpus: tuple[Gpu, ...], profile: Profile) -> tuple[Precision, tuple[str, ...]]:
    capability = compute_capability(gpus, profile)
    old = capability is not None and capability < 8
    if asked is None:
        return ("fp16" if old else "bf16"), ()
    if old and asked.startswith("bf16"):
        return asked, (f"compute capability {capability:g} has no bf16 arithmetic: --precision fp16 is faster",)
    return asked, ()


def _warnings(request: PlanRequest, ground: Ground, taken: Option, step: StepTime) -> Iterator[str]:
    """What the plan's figures leave out, and where they are close to a bound."""
    machine = ground.machine
    if taken.fit == "tight" and taken.memory is not None:
        over = gib_text(taken.memory.total - machine.memory_bytes)
        yield f"tight: with what the caching allocator usually loses it is {over} more than there is"
    if taken.split.engine == "megatron":
        yield from megatron_lacks(taken.job, taken.split)
    elif taken.split.offload:
        yield "the CPUs update the states in RAM: no time here counts that, and each step waits for it"
    # at most the work of one node that never waits
    if machine.nodes > 1 and step.best is not None and (work := step.best * machine.nodes) < 1:
        yield (
            f"so much time goes between the nodes that {machine.nodes} do at most {work:.2g} times the work of one "
            "that waits for nothing: a larger --global-batch, fewer nodes or a faster network would help"
        )
    if request.report is not None and ground.measurements is None:
        yield f"{printable(str(request.report))} holds no measurements of GPUs: nothing of it counts here"


def formulas() -> tuple[str, ...]:
    """Each formula as text: a heading, then its docstring, which is missing under python -OO.

    What a function raises is for its callers.
    """
    lost = "not kept by this interpreter (-OO)"
    return tuple(f"{title}\n{_RAISES.sub('', cleandoc(function.__doc__ or lost))}" for title, function in FORMULAS)


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
    options = tuple(_cpu_options(job, _cpu_splits(request, job, ranks), room))
    taken = next((option for option in options if option.works), None)
    if taken is None:
        least = min(option.memory.total for option in options if option.memory)
        size = "of unknown size" if room is None else f"of {gib_text(room, 0)}"
        raise UserError(
            f"{shape.name} does not fit {ranks} CPU ranks in RAM {size} (least: {gib_text(least)} a rank): plan "
            f"it for GPUs, and try it here: --node hgx-h100-8 --backend gloo --try"
        )
    why = "one rank holds all of it" if taken.split.name == "ddp" else "the ranks hold it together"
    if request.tensor is not None or request.pipeline is not None:
        why = "--tensor and --pipeline request it"
    warnings = (*warnings, "no GPU here: planned for CPU ranks, in RAM")
    return _plan_of(sourced.node, job, options, taken, why, warnings), taken


def _cpu_splits(request: PlanRequest, job: PlanJob, ranks: int) -> tuple[RankSplit, ...]:
    if request.tensor is None and request.pipeline is None:
        return RankSplit("ddp", ranks), fsdp(ranks)
    tensor, pipeline = request.tensor or 1, request.pipeline or 1
    wrong = undividable(job, ranks, tensor, pipeline, "CPU ranks")
    if wrong is not None:
        near = nearest_split(job, ranks, tensor, pipeline, lambda *_: True)
        raise UserError(f"{wrong}; {near or 'leave --tensor and --pipeline out'}")
    return (RankSplit(model_split_name(tensor, pipeline), ranks // (tensor * pipeline), tensor, pipeline),)


def _cpu_options(job: PlanJob, splits: tuple[RankSplit, ...], room: float | None) -> Iterator[Option]:
    """The options with the memory of one rank's tensors; all fit if the RAM is not known: the tried model is small."""
    for split in splits:
        memory = msgspec.structs.replace(memory_of(job, split, 0.0), framework=0.0)
        over = 0.0 if room is None else memory.total * split.world - room
        reason = f"{gib_text(over)} of RAM too much" if over > 0 else ""
        yield Option(split, job, "no" if over > 0 else "fits", memory, reason)
