"""Runs the probes that the chosen checks need, if the node allows it.

Other frameworks are measured after the ranks and in other processes, because both need the GPUs for themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gpudoctor.checks.core.registry import LEVELS, Check, Level
from gpudoctor.errors import UserError
from gpudoctor.facts.model.measurements import ONCE, PROBES, Measurements, Probe, ProbeProblem
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy_import import lazy_imports
from gpudoctor.load.devices import (
    CPU_RANKS,
    Backend,
    LoadRequest,
    backend_for,
    gpus_to_load,
    refused_frameworks,
    why_no_devices,
)

with lazy_imports():
    from gpudoctor import progress as progress_lines
    from gpudoctor.probes.runner import launch, messages, run_collector, run_progress
    from gpudoctor.probes.runner import plan as probe_plan

if TYPE_CHECKING:
    from gpudoctor.probes.runner.local_workers import LocalWorkers
    from gpudoctor.probes.runner.plan import ProbePlan

# Counted from the rendezvous of the ranks (before that: probes/runner/plan.py). A healthy standard run takes about
# half a minute, a full one about one minute, so several times as long means that something hangs. A burn adds its
# duration, since the last repetition may begin at its end.
RUN_DEADLINE_S: dict[Level, float] = {"standard": 120.0, "full": 300.0, "burn": 300.0}
PROBE_DEADLINE_S: dict[Level, float] = {"standard": 60.0, "full": 120.0, "burn": 120.0}
# a probe on CPU ranks takes 3 s, at level full up to 20; many times that on a busy machine
CPU_PROBE_DEADLINE_S: dict[Level, float] = {"standard": 30.0, "full": 180.0, "burn": 180.0}
# the check that needs a part -> the part's name in Measurements and its not_run
PARTS = {"env.frameworks": "frameworks", "strategy.deepspeed": "deepspeed", "strategy.tensorflow": "tensorflow"}
# the parts in which --inject desync=RANK can happen
DESYNCED = ("deepspeed", "tensorflow")
# the time that imports may take from a cold network disk, and some seconds to open CUDA on 8 GPUs
VIEWS_DEADLINE_S = 120.0
# for two CPU ranks DeepSpeed takes 16 s of CPU time, TensorFlow 15 s for each; many times that on a busy machine
DEEPSPEED_DEADLINE_S = 240.0
TENSORFLOW_DEADLINE_S = 240.0


def run_limit_s(level: Level) -> float:
    """The longest time for one round of ranks of this level on a node of 8 GPUs, including the import of torch."""
    if level not in RUN_DEADLINE_S:
        return 0.0
    probes = ("collective", "train") if level == "standard" else PROBES
    plan = probe_plan.ProbePlan("nccl", 8, probes=probes, level=level)
    return probe_plan.Limits(plan, RUN_DEADLINE_S[level], PROBE_DEADLINE_S[level]).whole_s


def measure(
    node: Node,
    checks: tuple[Check, ...],
    level: Level,
    request: LoadRequest,
    progress: Callable[[str], None] | None,
    on_interrupt: Callable[[Measurements], None],
    duration_s: float | None = None,
    workers: LocalWorkers | None = None,
) -> Measurements:
    """Run the probes that the chosen checks need; if they may not run, the result has the reason.

    `duration_s`: repeat them for this long (level burn). `workers`: the processes that a launcher
    has started on this node; they run all ranks but the first. Raise UserError for options that
    contradict the node (NCCL on a simulated one) or the launcher.
    """
    wanted, parts = _wanted(checks, level), parts_wanted(checks, level)
    if workers is not None and not workers.gather():
        workers = None  # the launcher's variables were inherited from a process that then called gpudoctor
    if workers is not None and request.ranks not in (None, workers.ranks):
        raise UserError(
            f"--ranks {request.ranks}: {workers.engine} started {workers.ranks} ranks here; leave --ranks out"
        )
    backend = backend_for(node, request.backend)
    why_not = _why_not(node, checks, wanted or parts, level, backend)
    if why_not is not None or backend is None:
        if request.inject:
            raise UserError(f"--inject makes a probe go wrong, and none runs here: {why_not}")
        return not_run(Missing(why_not or ""))
    gpus = gpus_to_load(node, request, workers) if backend == "nccl" else ()
    if isinstance(gpus, Missing):
        return not_run(gpus)
    plan = probe_plan.ProbePlan(
        backend=backend,
        ranks=workers.ranks if workers is not None else len(gpus) if backend == "nccl" else request.ranks or CPU_RANKS,
        gpus=tuple((gpu.index, known(gpu.uuid) or "", gpu.bus_id) for gpu in gpus),
        probes=wanted,
        level=level,
        duration_s=duration_s if wanted else None,
        inject=request.inject,
        engine=workers.engine if workers is not None else None,
        data=request.data,
        strategies=tuple(c.id.partition(".")[2] for c in checks if c.domain == "strategy" and c.id not in PARTS),
    )
    has_ranks = bool(wanted) or (backend == "nccl" and any(c.id == "env.torch" for c in checks))
    desynced = probe_plan.desyncs(plan) or bool(set(parts) & set(DESYNCED))
    strange = [text for text in plan.inject if not (desynced if text.startswith("desync=") else has_ranks)]
    if strange:
        raise UserError(f"--inject {strange[0]}: what was asked for has no ranks of a probe in which that can happen")
    if not has_ranks:
        probe_plan.checked(plan)
        measured = not_run(Missing("not asked for"))
    elif backend == "nccl" and isinstance(node.software.torch, Missing):
        measured = not_run(Missing(run_collector.INSTALL_TORCH))
    else:
        measured = _probed(plan, level, progress, on_interrupt, workers)
    refused = refused_frameworks(node, gpus, force=request.force) if backend == "nccl" and "frameworks" in parts else {}
    return with_parts(parts, plan, measured, progress, on_interrupt, refused)


def _probed(
    plan: ProbePlan,
    level: Level,
    progress: Callable[[str], None] | None,
    on_interrupt: Callable[[Measurements], None],
    workers: LocalWorkers | None,
) -> Measurements:
    """What the ranks measure."""
    limits_s = PROBE_DEADLINE_S if plan.backend == "nccl" else CPU_PROBE_DEADLINE_S
    lines = progress if isinstance(progress, progress_lines.ProgressLines) else None
    if lines is not None:
        usual = plan.backend == "nccl" and level == "standard"
        lines.expect(plan.probes, progress_lines.USUAL_STANDARD_S if usual else None)
    if progress is not None:
        progress(f"start {plan.ranks} rank{'s' * (plan.ranks > 1)}")
    with run_progress.sampling(plan) as sampled:

        def hear(rank: int, message: messages.AnyMessage) -> None:
            sampled.take(rank, message)
            if lines is not None:
                lines.hear(rank, message)

        measured = launch.run_probes(
            plan,
            deadline_s=RUN_DEADLINE_S[level] + (plan.duration_s or 0.0),
            probe_deadline_s=limits_s[level],
            progress=progress if lines is None else None,  # the lines show each rank
            on_interrupt=lambda partial: on_interrupt(sampled.with_telemetry(partial)),
            on_message=hear,
            workers=workers,
            on_wait=progress,
        )
    measured = sampled.with_telemetry(measured)
    if progress is not None:
        progress("")
    return measured


def puts_load(checks: tuple[Check, ...], level: Level) -> bool:
    """Whether these checks need ranks at all, whatever the node is."""
    return bool(_wanted(checks, level)) or any(c.id == "env.torch" and _within(c, level) for c in checks)


def _wanted(checks: tuple[Check, ...], level: Level) -> tuple[Probe, ...]:
    in_ranks = tuple(c for c in checks if c.id not in PARTS)
    wanted = tuple(probe for probe in PROBES if any(c.domain == probe and _within(c, level) for c in in_ranks))
    # if no probe is chosen, a burn repeats everything that loads the node
    repeated = tuple(probe for probe in PROBES if probe not in ONCE)
    return wanted or (repeated if any(c.domain == "burn" and _within(c, level) for c in checks) else ())


def _within(check: Check, level: Level) -> bool:
    return LEVELS.index(check.level) <= LEVELS.index(level)


def _why_not(
    node: Node, checks: tuple[Check, ...], wanted: tuple[str, ...], level: Level, backend: Backend | None
) -> str | None:
    """Why no rank is started at all; None if some are."""
    if LEVELS.index(level) < LEVELS.index("standard"):
        return f"level {level} puts no load on the node"
    if not wanted and not any(c.id == "env.torch" for c in checks):
        return "not asked for"
    if backend is None:
        return why_no_devices(node)
    # ranks on GPUs are started just to see torch's view of them; CPU ranks are not
    return "not asked for" if backend == "gloo" and not wanted else None


def not_run(why: Missing) -> Measurements:
    """Measurements without any probe, with the reason for each."""
    return without_parts(Measurements(not_run=dict.fromkeys((*PROBES, "torch"), why)), why)


def cut_short(partial: Measurements, why: str) -> Measurements:
    """Mark each probe without figures as failed: what was interrupted must not pass."""
    named = ("deepspeed", "tensorflow", "frameworks", "storage")  # like their fields
    fields = [*run_collector.FIGURES_OF_PROBE.items(), *((name, name) for name in named), ("torch", "torch_view")]
    lost: dict[str, Missing] = {name: Missing(why, "failed") for name, field in fields if not getattr(partial, field)}
    # a framework that did not answer stays unknown even if others did
    lost |= {name: gap for name, gap in partial.not_run.items() if name.startswith("frameworks.")}
    problem = ProbeProblem("launch", "error", why)
    return msgspec.structs.replace(partial, not_run=lost, problems=(*partial.problems, problem))


def parts_wanted(checks: tuple[Check, ...], level: Level) -> tuple[str, ...]:
    """The parts that these checks need at this level."""
    chosen = {c.id for c in checks if LEVELS.index(c.level) <= LEVELS.index(level)}
    return tuple(part for check, part in PARTS.items() if check in chosen)


def with_parts(
    parts: tuple[str, ...],
    plan: ProbePlan,
    measured: Measurements,
    progress: Callable[[str], None] | None,
    on_interrupt: Callable[[Measurements], None],
    refused: dict[str, Missing] | None = None,
) -> Measurements:
    """Measure these parts and add them, or the reasons why they did not run, to the measurements of the ranks.

    `plan` has the devices. `on_interrupt` gets the measurements so far if an exception (of a signal) ends it.
    `refused`: parts that may not be run, and why.
    """
    others = {name: why for name, why in measured.not_run.items() if name not in PARTS.values()}
    left_out = {part: Missing("not asked for") for part in PARTS.values() if part not in parts}
    measured = msgspec.structs.replace(measured, not_run=others | left_out)
    hung = next((problem.text for problem in measured.problems if problem.kind == "timeout"), None)
    if hung is not None and plan.backend == "nccl":  # one more process would hang in the driver too
        refused = dict.fromkeys(parts, Missing(f"not tried: {hung}", "failed"))
    try:
        for part in parts:
            why = (refused or {}).get(part)
            found = _part(part, plan, progress) if why is None else Measurements(not_run={part: why})
            measured = _joined(measured, found)
    except BaseException:
        on_interrupt(measured)
        raise
    return measured


def without_parts(measured: Measurements, why: Missing) -> Measurements:
    """The measurements with the reason why no part was run."""
    # drop the hint at CPU ranks: they cannot show which GPUs a framework sees
    of_gpus = Missing(why.reason.partition("; --backend gloo")[0], why.kind)
    return _noted(measured, dict.fromkeys(PARTS.values(), why) | {"frameworks": of_gpus})


def _part(part: str, plan: ProbePlan, progress: Callable[[str], None] | None) -> Measurements:
    if plan.engine is not None:
        why = f"{plan.engine} has started a process for each GPU: run gpudoctor by itself for it"
        return Measurements(not_run={part: Missing(why)})
    if part == "frameworks" and plan.backend == "gloo":
        return Measurements(not_run={part: Missing("asked where GPUs of this machine are measured, not CPU ranks")})
    if part != "frameworks" and plan.ranks == 1:
        return Measurements(not_run={part: Missing("one rank has nobody to divide the work with")})
    from gpudoctor.probes.frameworks.run import deepspeed_strategies, framework_views, tensorflow_strategies

    if part == "frameworks":
        if progress is not None:
            progress("ask each framework for the GPUs")
        return framework_views(VIEWS_DEADLINE_S)
    if part == "deepspeed":
        return deepspeed_strategies(plan, DEEPSPEED_DEADLINE_S, progress)
    return tensorflow_strategies(plan, TENSORFLOW_DEADLINE_S, progress)


def _joined(measured: Measurements, found: Measurements) -> Measurements:
    return msgspec.structs.replace(
        _noted(measured, found.not_run),
        frameworks=found.frameworks or measured.frameworks,
        deepspeed=found.deepspeed or measured.deepspeed,
        tensorflow=found.tensorflow or measured.tensorflow,
    )


def _noted(measured: Measurements, not_run: dict[str, Missing]) -> Measurements:
    return msgspec.structs.replace(measured, not_run=measured.not_run | not_run)
