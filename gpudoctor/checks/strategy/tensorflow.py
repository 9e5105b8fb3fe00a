"""strategy.tensorflow: do TensorFlow's mirrored strategies train correctly here?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding, unread
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.strategy.agreement import BF16_ERROR, FP32_ERROR, judged_strategy, strategy_check
from gpudoctor.checks.strategy.library import library_absent, library_case

_NAMES = {"mirrored": "MirroredStrategy", "multi-worker": "MultiWorkerMirroredStrategy"}


@strategy_check(
    "tensorflow", "TensorFlow's mirrored strategies train what one device alone trains", (FP32_ERROR, BF16_ERROR)
)
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
