"""train.bucket: does the size of DDP's gradient buckets matter here?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Finding, Found, ok, skip
from gpudoctor.checks.core.probe_outcome import ranks_in_words
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.train.sync import judges_training
from gpudoctor.facts.model.measurements import Training

_DEFAULT_BUCKET_MB = 25
_GAIN = Limit(0.05, "of the step", "gpudoctor's own choice: less is not worth a setting", name="gain")


@check(
    "train.bucket",
    title="Whether the size of DDP's gradient buckets matters here",
    level="full",
    needs_gpu=False,
    limits=(_GAIN,),
)
@judges_training("bucket size")
def bucket(case: Case, training: Training) -> Iterator[Finding]:
    """Report which bucket_cap_mb is fastest, and by how much: advice, never a fault."""
    steps_ms = {step.bucket_cap_mb: step.step_ms for step in training.buckets}
    if training.world_size < 2 or len(steps_ms) < 2 or _DEFAULT_BUCKET_MB not in steps_ms:
        yield skip(NODE, "bucket sizes were not tried in this run")
        return
    gradient_mb = training.gradient_bytes / 1e6
    tried = ", ".join(f"{size:g} MB {ms:.2f} ms" for size, ms in steps_ms.items())
    text = f"{ranks_in_words(case, training.world_size)}: {tried} a step, gradients of {gradient_mb:.3g} MB"
    if training.device == "cpu":
        yield skip(NODE, f"{text}, not judged")
        return
    best = min(steps_ms, key=steps_ms.__getitem__)
    gain = 1 - steps_ms[best] / steps_ms[_DEFAULT_BUCKET_MB]
    if gain < case.limit(_GAIN):
        yield ok(NODE, Found(f"{text}: it does not matter here", round(gain, 3), "ratio"))
        return
    yield ok(
        NODE, Found(f"{text}: bucket_cap_mb={best:g} saves {gain:.0%} of a step of this model", round(gain, 3), "ratio")
    )
