"""strategy.deepspeed, strategy.tensorflow: do the strategies of these libraries train correctly here?"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Finding, skip, unknown
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.strategy.agreement import BF16_ERROR, FP32_ERROR, judged_strategy, runs_of, strategy_check
from gpudoctor.checks.strategy.data_parallel import judged_shares
from gpudoctor.facts.model.measured_strategies import LibraryStrategies
from gpudoctor.facts.model.measurements import Launch

# what each stage of ZeRO divides of the memory in use between steps (arXiv:1910.02054, figure 1)
_DIVIDED = {"zero-1": ("optimizer",), "zero-2": ("optimizer",), "zero-3": ("parameters", "optimizer")}
_SHARE_EXCESS = Limit(
    0.25, "of the share", "DeepSpeed pads every share to the same length", name="share_excess", status="fail"
)
_NAMES = {"mirrored": "MirroredStrategy", "multi-worker": "MultiWorkerMirroredStrategy"}


def library_absent(case: Case, part: str, what: str) -> Finding:
    """Why a library was not tried; a skip if it is not installed."""
    why = case.measurements.not_run.get(part)
    if why is not None and why.kind != "failed" and why.reason.startswith(f"{what} "):
        return skip(NODE, why.reason)
    return skip(NODE, f"{what}: not measured in this run") if why is None else unread(NODE, what, why)


def library_case(case: Case, measured: LibraryStrategies) -> Case:
    """The case with the library's results in place of torch's, and without the problems of torch's ranks."""
    found, launch = measured.strategies, case.measurements.launch
    if launch is None or launch.world_size != found.world_size:
        launch = Launch("nccl" if found.device == "cuda" else "gloo", found.world_size, ())
    return msgspec.structs.replace(
        case, measurements=msgspec.structs.replace(case.measurements, strategies=found, problems=(), launch=launch)
    )


@strategy_check("deepspeed", (FP32_ERROR, BF16_ERROR, _SHARE_EXCESS))
def deepspeed(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate in a stage, or a rank holds more than its share."""
    measured = case.measurements.deepspeed
    if measured is None:
        yield library_absent(case, "deepspeed", "DeepSpeed")
        return
    own = library_case(case, measured)
    what = f"DeepSpeed {measured.version}"
    yield from judged_strategy(
        own, "deepspeed", what, likely="parts of gradients or weights that did not reach every rank"
    )
    runs = runs_of(own, "deepspeed")
    lost = [stage for stage in _DIVIDED if stage not in [run.variant for run in runs]]
    if lost and "deepspeed" not in measured.strategies.not_run:
        yield unknown(NODE, f"{what}: no rank reported a result of {', '.join(lost)}")
    for run in runs:
        yield from judged_shares(own, _SHARE_EXCESS, run, _DIVIDED.get(run.variant, ()))


@strategy_check("tensorflow", (FP32_ERROR, BF16_ERROR))
def tensorflow(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate, between devices of one process or between processes."""
    measured = case.measurements.tensorflow
    if measured is None:
        yield library_absent(case, "tensorflow", "TensorFlow")
        return
    what = f"TensorFlow {measured.version}"
    for variant, why in measured.strategies.not_run.items():
        yield unread(NODE, f"{_NAMES.get(variant, variant)} of {what}", why)
    yield from judged_strategy(
        library_case(case, measured),
        "tensorflow",
        what,
        likely="gradients that are not averaged over all replicas",
        # its processes do not use gloo
        who=None if measured.strategies.device == "cuda" else f"{measured.strategies.world_size} CPU ranks",
    )
