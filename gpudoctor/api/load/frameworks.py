"""Frameworks other than PyTorch: which the chosen checks need, and running them.

They run after the ranks and in processes of their own, because both need the GPUs for themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gpudoctor.api.load.request import FRAMEWORKS
from gpudoctor.checks.core.registry import Check, Level
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing

if TYPE_CHECKING:
    from gpudoctor.probes.runner.plan import ProbePlan

# the frameworks in which --inject desync=RANK can happen
DESYNCED = ("deepspeed", "tensorflow")
# the time that imports may take from a cold network disk, and some seconds to open CUDA on 8 GPUs
VIEWS_DEADLINE_S = 120.0
# for two CPU ranks DeepSpeed takes 16 s of CPU time, TensorFlow 15 s for each; many times that on a busy machine
DEEPSPEED_DEADLINE_S = 240.0
TENSORFLOW_DEADLINE_S = 240.0


def frameworks_wanted(checks: tuple[Check, ...], level: Level) -> tuple[str, ...]:
    """The frameworks that these checks need at this level."""
    chosen = {check.id for check in checks if check.runs_at(level)}
    return tuple(framework for check, framework in FRAMEWORKS.items() if check in chosen)


def with_frameworks(
    frameworks: tuple[str, ...],
    plan: ProbePlan,
    measured: Measurements,
    progress: Callable[[str], None] | None,
    on_interrupt: Callable[[Measurements], None],
    refused: dict[str, Missing] | None = None,
) -> Measurements:
    """Measure these frameworks and add them, or the reasons why they did not run, to the measurements of the ranks.

    `plan` has the devices. `on_interrupt` gets the measurements so far if an exception (of a signal) ends it.
    `refused`: frameworks that may not be run, and why.
    """
    others = {name: why for name, why in measured.not_run.items() if name not in FRAMEWORKS.values()}
    left_out = {framework: Missing("not asked for") for framework in FRAMEWORKS.values() if framework not in frameworks}
    measured = msgspec.structs.replace(measured, not_run=others | left_out)
    hung = next((problem.text for problem in measured.problems if problem.kind == "timeout"), None)
    if hung is not None and plan.backend == "nccl":  # one more process would hang in the driver too
        refused = dict.fromkeys(frameworks, Missing(f"not tried: {hung}", "failed"))
    try:
        for framework in frameworks:
            why = (refused or {}).get(framework)
            found = _run(framework, plan, progress) if why is None else Measurements(not_run={framework: why})
            measured = _joined(measured, found)
    except BaseException:
        on_interrupt(measured)
        raise
    return measured


def _run(framework: str, plan: ProbePlan, progress: Callable[[str], None] | None) -> Measurements:
    why = ""
    if plan.engine is not None:
        why = f"{plan.engine} has started a process for each GPU: run gpudoctor by itself for it"
    elif framework == "frameworks" and plan.backend == "gloo":
        why = "asked where GPUs of this machine are measured, not CPU ranks"
    elif framework != "frameworks" and plan.ranks == 1:
        why = "one rank has nobody to divide the work with"
    if why:
        return Measurements(not_run={framework: Missing(why)})
    from gpudoctor.probes.frameworks.run import deepspeed_strategies, framework_views, tensorflow_strategies

    if framework == "frameworks":
        if progress is not None:
            progress("ask each framework for the GPUs")
        return framework_views(VIEWS_DEADLINE_S)
    if framework == "deepspeed":
        return deepspeed_strategies(plan, DEEPSPEED_DEADLINE_S, progress)
    return tensorflow_strategies(plan, TENSORFLOW_DEADLINE_S, progress)


def _joined(measured: Measurements, found: Measurements) -> Measurements:
    return msgspec.structs.replace(
        measured,
        not_run=measured.not_run | found.not_run,
        frameworks=found.frameworks or measured.frameworks,
        deepspeed=found.deepspeed or measured.deepspeed,
        tensorflow=found.tensorflow or measured.tensorflow,
    )
