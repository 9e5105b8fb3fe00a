"""One `gpudoctor plan`: read the facts, judge them, choose, and write the plan."""

from __future__ import annotations

import argparse
import os
from itertools import takewhile
from pathlib import Path
from shutil import get_terminal_size

import msgspec

from gpudoctor.api import Sourced
from gpudoctor.checks.core.scope import scope_of
from gpudoctor.cli.check import read_source
from gpudoctor.config import load_config
from gpudoctor.errors import UserError
from gpudoctor.exits import FAILED, OK, UNKNOWN, printable, write_stdout
from gpudoctor.facts.deadlines import COLLECTION
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.node import Node
from gpudoctor.json_text import json_line
from gpudoctor.plan import megatron
from gpudoctor.plan.choose import Choice, choose
from gpudoctor.plan.communication import StepTime, step_time
from gpudoctor.plan.cpu_ranks import cpu_plan
from gpudoctor.plan.explain import formulas
from gpudoctor.plan.forced import choose_forced
from gpudoctor.plan.hf_config import shape_of_config
from gpudoctor.plan.known_models import is_size, shape_of_size
from gpudoctor.plan.last_check import measurements_of
from gpudoctor.plan.launch import launch_of
from gpudoctor.plan.machine import Machine, compute_capability, machine_of, usable_gpus
from gpudoctor.plan.memory import Job
from gpudoctor.plan.model import Plan, plan_of
from gpudoctor.plan.model_shape import ModelError, ModelShape, seq_of
from gpudoctor.plan.node_health import Trouble, examined, meaning, mended, troubles, unfit_gpus
from gpudoctor.plan.plan_text import render_text
from gpudoctor.plan.precision import Precision
from gpudoctor.plan.settings import batch_of, bucket_of, harmful_settings, learning_rates, wanted_settings
from gpudoctor.plan.strategies import Option
from gpudoctor.plugins import all_checks
from gpudoctor.profiles.load import profile_for
from gpudoctor.profiles.profile import Profile
from gpudoctor.report.model import SourceSummary
from gpudoctor.report.output_files import write_file
from gpudoctor.units import gib_text


def plan(args: argparse.Namespace) -> int:
    """Run `gpudoctor plan`. Raise UserError where there is nothing to plan, with the nearest that would work.

    The exit code is 1 where a trial broke, 3 where it did not end or was refused a GPU.
    """
    for option, given in (("--backend", args.backend), ("--ranks", args.ranks), ("--force", args.force or None)):
        if given is not None and not args.try_it:
            raise UserError(f"{option} says where --try runs: add --try, or leave {option} out")
    args.backend = args.backend or "auto"
    shape = _shape(args.model)
    sourced = read_source(args.node, args.fault, args.deadline or COLLECTION.seconds)
    if not args.try_it:
        _write(make_plan(args, shape, sourced)[0], args)
        return OK
    from gpudoctor.plan.verification.run import devices_of, run_trial

    devices = devices_of(sourced.node, args)  # before the plan: it may not run at all
    made, taken = (make_plan if sourced.node.gpus else cpu_plan)(args, shape, sourced)
    trial = run_trial(taken.job, taken.split, devices)
    _write(msgspec.structs.replace(made, trial=trial), args)
    return OK if trial.error is None else UNKNOWN if trial.error_kind in ("timeout", "refused") else FAILED


def make_plan(args: argparse.Namespace, shape: ModelShape, sourced: Sourced) -> tuple[Plan, Option]:
    """The plan for a model on a node, and the option that it takes. Raise UserError."""
    node = sourced.node
    measured = sourced.measurements if args.report is None else measurements_of(args.report, node)
    measurements = _of_gpus(measured)
    checks = all_checks()
    report = examined(node, measurements, checks, load_config(args.config, os.environ, checks), args.gpu)
    scope, _ = scope_of(node, args.gpu)
    unfit = unfit_gpus(report) if node.gpus else {}
    gpus = usable_gpus(node, scope, unfit)
    precision, warnings = _precision(args.precision, gpus, profile_for(node))
    seq, seq_warnings = seq_of(args.seq, shape)
    machine = machine_of(node, gpus, args.nodes, precision, measurements)
    left_out = tuple((i, why) for i, why in sorted(unfit.items()) if scope is None or i in scope)
    machine = msgspec.structs.replace(machine, left_out=left_out)
    job = Job(shape, precision, args.optimizer, seq)
    choice = _choice(machine, job, args)
    taken = choice.taken
    step = step_time(taken.job, taken.split, machine)
    batch = batch_of(taken.job, taken.split)
    source = SourceSummary(node.source.kind, node.source.name, node.source.faults)
    made = plan_of(machine, job, choice, step, batch, source, node.source.kind == "simulated")
    wanted = wanted_settings(machine, taken.split, node)
    bucket = bucket_of(taken.job, taken.split, measurements)
    found = troubles(report, unfit)
    made = msgspec.structs.replace(
        made,
        learning_rate=learning_rates(batch),
        bucket=bucket,
        wanted=wanted,
        harmful=harmful_settings(machine, node),
        troubles=tuple(_meant(t, node, machine, choice, step, measurements) for t in found),
        warnings=(
            *warnings,
            *seq_warnings,
            *choice.warnings,
            *_tight(choice, machine.memory_bytes),
            *_lacking(taken),
            *_slower(machine, step),
            *_unmeasured(args, measurements),
            *node.source.notes,
        ),
        launch=launch_of(machine, taken.job, taken.split, batch, wanted, bucket, len(gpus) == len(node.gpus)),
        formulas=formulas() if args.explain else (),
    )
    return made, taken


def _shape(model: str) -> ModelShape:
    if is_size(model):
        return shape_of_size(model)
    if not model.strip():
        raise ModelError("MODEL_SIZE is empty: write 350m, 7b or 1.5b, or give the path of a config.json")
    digits = "".join(takewhile(lambda c: c in "0123456789.", model.replace(",", ".")))
    if digits and is_size(f"{digits}b") and not os.path.lexists(model):
        raise ModelError(
            f"{printable(model)[:60]} is no size: did you mean {digits}b? Sizes end in m or b; or give a file"
        )
    return shape_of_config(Path(model))


def write_plan_error(args: argparse.Namespace, message: str, code: int) -> int:
    """One JSON document on every exit: what could not be planned, and why."""
    if (args.format or "text") == "json":
        _write(Plan(error=printable(message)), args)
    return code


def _choice(machine: Machine, job: Job, args: argparse.Namespace) -> Choice:
    if args.tensor is None and args.pipeline is None:
        return choose(machine, job, args.global_batch)
    return choose_forced(machine, job, args.global_batch, args.tensor or 1, args.pipeline or 1)


def _meant(
    trouble: Trouble,
    node: Node,
    machine: Machine,
    choice: Choice,
    step: StepTime,
    measurements: Measurements | None,
) -> Trouble:
    """The trouble with what it means: the same plan on a machine whose GPU has a sound link is the yardstick."""
    taken = choice.taken
    gpus = tuple(mended(gpu) if gpu.index in trouble.gpus else gpu for gpu in machine.gpus)
    whole = msgspec.structs.replace(node, gpus=tuple(mended(g) if g.index in trouble.gpus else g for g in node.gpus))
    sound = machine_of(whole, gpus, machine.nodes, taken.job.precision, measurements)
    after = step_time(taken.job, taken.split, sound)
    return msgspec.structs.replace(trouble, means=meaning(trouble, machine, step, after, sound.host))


def _of_gpus(measurements: Measurements | None) -> Measurements | None:
    """What CPU ranks measured says nothing of GPUs."""
    launch = measurements.launch if measurements else None
    return measurements if launch is not None and launch.backend == "nccl" else None


def _precision(asked: Precision | None, gpus: tuple[Gpu, ...], profile: Profile) -> tuple[Precision, tuple[str, ...]]:
    capability = compute_capability(gpus, profile)
    old = capability is not None and capability < 8
    if asked is None:
        return ("fp16" if old else "bf16"), ()
    if old and asked.startswith("bf16"):
        return asked, (f"compute capability {capability:g} has no bf16 arithmetic: --precision fp16 is faster",)
    return asked, ()


def _unmeasured(args: argparse.Namespace, measurements: Measurements | None) -> tuple[str, ...]:
    if args.report is None or measurements is not None:
        return ()
    return (f"{printable(str(args.report))} holds no measurements of GPUs: nothing of it counts here",)


def _tight(choice: Choice, room_bytes: float) -> tuple[str, ...]:
    taken = choice.taken
    if taken.fit != "tight" or taken.memory is None:
        return ()
    over = gib_text(taken.memory.total - room_bytes)
    return (f"tight: with what the caching allocator usually loses it is {over} more than there is",)


def _lacking(taken: Option) -> tuple[str, ...]:
    """What neither the memory nor the times of the plan say."""
    if taken.split.engine == "megatron":
        return megatron.lacks(taken.job, taken.split)
    if taken.split.offload:
        return ("the CPUs update the states in RAM: no time here counts that, and each step waits for it",)
    return ()


def _slower(machine: Machine, step: StepTime) -> tuple[str, ...]:
    """Said where even the bound of all nodes together is below what one would do that waits for nothing."""
    if machine.nodes == 1 or step.best is None or step.best * machine.nodes >= 1:
        return ()
    work = step.best * machine.nodes
    return (
        f"so much time goes between the nodes that {machine.nodes} do at most {work:.2g} times the work of one that "
        "waits for nothing: a larger --global-batch, fewer nodes or a faster network would help",
    )


def _write(made: Plan, args: argparse.Namespace) -> None:
    if (args.format or "text") == "json":
        text = json_line(made)
    else:
        text = render_text(made, width=get_terminal_size((100, 24)).columns)
    if args.output is None or str(args.output) == "-":
        write_stdout(text)
    else:
        write_file(args.output, text)
