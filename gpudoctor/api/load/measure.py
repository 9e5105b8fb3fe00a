"""Runs the probes that the chosen checks need, if the node allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gpudoctor.api.load.devices import (
    CPU_RANKS,
    backend_for,
    gpus_to_load,
    refused_frameworks,
    why_no_devices,
)
from gpudoctor.api.load.frameworks import DESYNCED, frameworks_wanted, with_frameworks
from gpudoctor.api.load.request import FRAMEWORKS, Backend, LoadRequest, not_run
from gpudoctor.checks.core.registry import LEVELS, Check, Level
from gpudoctor.errors import UserError
from gpudoctor.facts.model.measurements import ONCE, PROBES, Measurements, Probe, ProbeProblem
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    from gpudoctor.probes.runner import launch, messages, run_collector, run_progress
    from gpudoctor.probes.runner import plan as probe_plan
    from gpudoctor.report import progress as progress_lines

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
    *,
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
    probes, frameworks = probes_wanted(checks, level), frameworks_wanted(checks, level)
    workers = _gathered(workers, request)
    backend = backend_for(node, request.backend)
    why_not = _why_not(node, checks, probes or frameworks, level, backend)
    if why_not is not None or backend is None:
        if request.inject:
            raise UserError(f"--inject makes a probe go wrong, and none runs here: {why_not}")
        return not_run(Missing(why_not or ""))
    gpus = gpus_to_load(node, request, workers) if backend == "nccl" else ()
    if isinstance(gpus, Missing):
        return not_run(gpus)
    plan = probe_plan.ProbePlan(
        backend=backend,
        ranks=workers.ranks if workers is not None else len(gpus) or request.ranks or CPU_RANKS,
        gpus=tuple((gpu.index, known(gpu.uuid) or "", gpu.bus_id) for gpu in gpus),
        probes=probes,
        level=level,
        duration_s=duration_s if probes else None,
        inject=request.inject,
        engine=workers.engine if workers is not None else None,
        data=request.data,
        strategies=_strategies_wanted(checks),
    )
    has_ranks = bool(probes) or (backend == "nccl" and _sees_torch(checks, level))
    _refuse_injections_elsewhere(plan, frameworks, has_ranks=has_ranks)
    if not has_ranks:
        probe_plan.checked(plan)
        measured = not_run(Missing("not asked for"))
    else:
        measured = _run_ranks(node, plan, level, progress, on_interrupt, workers)
    refused = refused_frameworks(node, gpus, force=request.force) if gpus and "frameworks" in frameworks else {}
    return with_frameworks(frameworks, plan, measured, progress, on_interrupt, refused)


def _gathered(workers: LocalWorkers | None, request: LoadRequest) -> LocalWorkers | None:
    """The processes of the launcher; None if its variables were inherited from a process that then called gpudoctor."""
    if workers is None or not workers.gather():
        return None
    if request.ranks not in (None, workers.ranks):
        raise UserError(
            f"--ranks {request.ranks}: {workers.engine} started {workers.ranks} ranks here; leave --ranks out"
        )
    return workers


def _refuse_injections_elsewhere(plan: ProbePlan, frameworks: tuple[str, ...], *, has_ranks: bool) -> None:
    """Raise UserError for an injected fault that nothing which runs would show."""
    desynced = probe_plan.desyncs(plan) or bool(set(frameworks) & set(DESYNCED))
    for text in plan.inject:
        if not (desynced if text.startswith("desync=") else has_ranks):
            raise UserError(f"--inject {text}: what was asked for has no ranks of a probe in which that can happen")


def _run_ranks(
    node: Node,
    plan: ProbePlan,
    level: Level,
    progress: Callable[[str], None] | None,
    on_interrupt: Callable[[Measurements], None],
    workers: LocalWorkers | None,
) -> Measurements:
    if plan.backend == "nccl" and isinstance(node.software.torch, Missing):
        return not_run(Missing(run_collector.INSTALL_TORCH))
    limits_s = PROBE_DEADLINE_S if plan.backend == "nccl" else CPU_PROBE_DEADLINE_S
    lines = progress if isinstance(progress, progress_lines.ProgressLines) else None
    if lines is not None:
        usual = plan.backend == "nccl" and level == "standard"
        lines.expect(plan.probes, progress_lines.USUAL_STANDARD_S if usual else None)
    if progress is not None:
        progress(f"start {plan.ranks} rank{'s' * (plan.ranks > 1)}")
    with run_progress.sampling(plan) as sampled:

        def hear(rank: int, message: messages.RankMessage) -> None:
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
    return bool(probes_wanted(checks, level)) or _sees_torch(checks, level)


def probes_wanted(checks: tuple[Check, ...], level: Level) -> tuple[Probe, ...]:
    """The probes that the ranks run for these checks at this level."""
    in_ranks = tuple(c for c in checks if c.id not in FRAMEWORKS)
    wanted = tuple(probe for probe in PROBES if any(c.domain == probe and c.runs_at(level) for c in in_ranks))
    # if no probe is chosen, a burn repeats everything that loads the node
    repeated = tuple(probe for probe in PROBES if probe not in ONCE)
    return wanted or (repeated if any(c.domain == "burn" and c.runs_at(level) for c in checks) else ())


def _sees_torch(checks: tuple[Check, ...], level: Level) -> bool:
    """Whether ranks on GPUs are started just to see torch's view of them."""
    return any(check.id == "env.torch" and check.runs_at(level) for check in checks)


def _strategies_wanted(checks: tuple[Check, ...]) -> tuple[str, ...]:
    """The strategies that the ranks run, without those that other frameworks run."""
    return tuple(c.id.partition(".")[2] for c in checks if c.domain == "strategy" and c.id not in FRAMEWORKS)


def _why_not(
    node: Node, checks: tuple[Check, ...], wanted: tuple[str, ...], level: Level, backend: Backend | None
) -> str | None:
    """Why no rank is started at all; None if some are."""
    if LEVELS.index(level) < LEVELS.index("standard"):
        return f"level {level} puts no load on the node"
    if not wanted and not _sees_torch(checks, level):
        return "not asked for"
    if backend is None:
        return why_no_devices(node)
    # ranks on GPUs are started just to see torch's view of them; CPU ranks are not
    return "not asked for" if backend == "gloo" and not wanted else None


def cut_short(partial: Measurements, why: str) -> Measurements:
    """Mark each probe without figures as failed: what was interrupted must not pass."""
    named = ("deepspeed", "tensorflow", "frameworks", "storage")  # like their fields
    fields = [*run_collector.FIGURES_OF_PROBE.items(), *((name, name) for name in named), ("torch", "torch_view")]
    lost: dict[str, Missing] = {name: Missing(why, "failed") for name, field in fields if not getattr(partial, field)}
    # a framework that did not answer stays unknown even if others did
    lost |= {name: gap for name, gap in partial.not_run.items() if name.startswith("frameworks.")}
    problem = ProbeProblem("launch", "error", why)
    return msgspec.structs.replace(partial, not_run=lost, problems=(*partial.problems, problem))
