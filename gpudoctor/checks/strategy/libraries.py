"""strategy.deepspeed and strategy.tensorflow: whether the strategies of libraries beside torch train right here."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import NODE, Finding, skip, unknown, unread
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.strategy.data_parallel import shares
from gpudoctor.checks.strategy.verdict import BF16_ERROR, FP32_ERROR, judged_strategy, runs_of
from gpudoctor.facts.model.measured_frameworks import LibraryStrategies
from gpudoctor.facts.model.measurements import Launch

DEEPSPEED, TENSORFLOW = "strategy.deepspeed", "strategy.tensorflow"
# what each stage of ZeRO divides of that which is there between two steps (arXiv:1910.02054, figure 1)
_DIVIDED = {"zero-1": ("optimizer",), "zero-2": ("optimizer",), "zero-3": ("parameters", "optimizer")}
_NAMES = {"mirrored": "MirroredStrategy", "multi-worker": "MultiWorkerMirroredStrategy"}


_SHARE_EXCESS = Limit(0.25, "of the share", "DeepSpeed pads every share to the same length", name="share_excess")


@check(
    DEEPSPEED,
    title="DeepSpeed's ZeRO 1, 2 and 3 train what one rank alone trains",
    level="full",
    needs_gpu=False,
    limits=(FP32_ERROR, BF16_ERROR, _SHARE_EXCESS),
)
def deepspeed(case: Case) -> Iterator[Finding]:
    """Fail where losses or weights deviate in a stage, or a rank holds more than its share."""
    measured = case.measurements.deepspeed
    if measured is None:
        yield _absent(case, "deepspeed", "DeepSpeed")
        return
    own = _with_its_figures(case, measured)
    what = f"DeepSpeed {measured.version}"
    yield from judged_strategy(
        own, "deepspeed", what, likely="parts of gradients or weights that did not reach every rank"
    )
    runs = runs_of(own, "deepspeed")
    lost = [stage for stage in _DIVIDED if stage not in [run.variant for run in runs]]
    if lost and "deepspeed" not in measured.strategies.not_run:
        yield unknown(NODE, f"{what}: no rank reported a result of {', '.join(lost)}")
    for run in runs:
        yield from shares(own, _SHARE_EXCESS, run, _DIVIDED.get(run.variant, ()))


@check(
    TENSORFLOW,
    title="TensorFlow's mirrored strategies train what one device alone trains",
    level="full",
    needs_gpu=False,
    limits=(FP32_ERROR, BF16_ERROR),
)
def tensorflow(case: Case) -> Iterator[Finding]:
    """Fail where losses or weights deviate, between devices of one process or between processes."""
    measured = case.measurements.tensorflow
    if measured is None:
        yield _absent(case, "tensorflow", "TensorFlow")
        return
    what = f"TensorFlow {measured.version}"
    for variant, why in measured.strategies.not_run.items():
        yield unread(NODE, f"{_NAMES.get(variant, variant)} of {what}", why)
    yield from judged_strategy(
        _with_its_figures(case, measured),
        "tensorflow",
        what,
        likely="gradients that are not averaged over all replicas",
        # its processes have no gloo between them
        who=None if measured.strategies.device == "cuda" else f"{measured.strategies.world_size} CPU ranks",
    )


def _absent(case: Case, part: str, what: str) -> Finding:
    why = case.measurements.not_run.get(part)
    if why is not None and why.kind != "failed" and why.reason.startswith(f"{what} "):
        return skip(NODE, why.reason)
    return skip(NODE, f"{what}: not measured in this run") if why is None else unread(NODE, what, why)


def _with_its_figures(case: Case, measured: LibraryStrategies) -> Case:
    """The case with the library's figures in the place of torch's; what befell torch's ranks is not its doing."""
    found, launch = measured.strategies, case.measurements.launch
    if launch is None or launch.world_size != found.world_size:
        launch = Launch("nccl" if found.device == "cuda" else "gloo", found.world_size, ())
    return replace(case, measurements=replace(case.measurements, strategies=found, problems=(), launch=launch))
