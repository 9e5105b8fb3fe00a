"""train.scaling, train.bucket: how much longer is a step when all ranks work together, and why?"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

import msgspec

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.measured.probe_outcome import judges_training
from gpudoctor.checks.measured.ranks import gpus_of, ranks_in_words
from gpudoctor.checks.measured.under_load import median
from gpudoctor.facts.model.measurements import Training
from gpudoctor.facts.model.missing import Missing, known

_EFFICIENCY_2 = Limit(0.95, "efficiency", "rule of thumb: 2 GPUs 1.9 x", name="efficiency_2", status="warn")
_EFFICIENCY_4 = Limit(0.88, "efficiency", "rule of thumb: 4 GPUs 3.5 x", name="efficiency_4", status="warn")
_EFFICIENCY_8 = Limit(0.81, "efficiency", "rule of thumb: 8 GPUs 6.5 x", name="efficiency_8", status="warn")
_ADVICE = (
    Advice("Look at the paths and the slowest rank.", "gpudoctor check nvlink pcie env.nccl train.balance -v"),
    Advice("Where the paths are as they should be: larger batches or gradient accumulation hide it."),
)
_DEFAULT_BUCKET_MB = 25
_GAIN = Limit(0.05, "of the step", "gpudoctor's own choice: less is not worth a setting", name="gain")


@check("train.scaling", needs_gpu=False, limits=(_EFFICIENCY_2, _EFFICIENCY_4, _EFFICIENCY_8))
@judges_training("scaling")
def scaling(case: Case, training: Training) -> Iterator[Finding]:
    """Warn if a step with all ranks takes much longer than the same step on one rank alone."""
    who = ranks_in_words(case, training.world_size)
    if training.world_size < 2 or not training.ranks:
        yield skip(NODE, f"{who}: nothing to scale")
        return
    if isinstance(training.solo_step_ms, Missing):
        yield unread(NODE, "the step on one rank alone", training.solo_step_ms)
        return
    step_ms = known(training.steady_step_ms)
    if step_ms is None:  # only the steps with their parts timed
        step_ms = median(r.step_ms for r in training.ranks) or 0.0
    if step_ms <= 0:
        yield unknown(NODE, "scaling: the steps took no time, so nothing was measured")
        return
    efficiency = training.solo_step_ms / step_ms
    text = f"{who}: {efficiency * training.world_size:.2f} x one rank, efficiency {efficiency:.0%}"
    if (factors := efficiency_factors(training, efficiency)) is not None:
        text += (
            f" = concurrency {factors.concurrency:.2f} x balance {factors.balance:.2f}"
            f" x communication {factors.communication:.2f}"
        )
    gradient = f"gradients of {training.gradient_bytes / 1e6:.3g} MB a step"
    if training.device == "cpu":
        yield skip(NODE, f"{text} ({gradient}), not judged")
        return
    if not _direct(case, training):
        yield skip(
            NODE, f"{text}, not judged: gradients of GPUs without NVLink or peer-to-peer pass through host memory"
        )
        return
    limit = _good(case, training.world_size)
    found = Found(f"{text} ({gradient})", round(efficiency, 3), "ratio")
    expected = Expected(f"at least {limit:.0%}", ">=", round(limit, 3), "ratio", case.limit_source(_EFFICIENCY_2))
    data_ms = max(r.data_ms for r in training.ranks)
    evidence = (
        Evidence("probe", f"step {step_ms:.2f} ms, alone {training.solo_step_ms:.2f} ms, {gradient}"),
        Evidence("data loading", f"{data_ms:.2f} ms a batch, which is no part of these steps"),
    )
    if efficiency >= limit:
        yield ok(NODE, found, expected, *evidence)
        return
    yield warn(NODE, found, expected, *evidence, likely=_likely(factors), advice=_ADVICE)


class EfficiencyFactors(msgspec.Struct, frozen=True):
    """The factors of the efficiency; their product is the efficiency, exactly.

    `concurrency`: a rank's mean compute time alone, divided by that while all compute (shared power, memory, cores);
    `balance`: mean divided by maximum of the ranks' compute times; `communication`: the rest, which is what
    exchanging gradients adds to a step.
    """

    concurrency: float
    balance: float
    communication: float


def efficiency_factors(training: Training, efficiency: float) -> EfficiencyFactors | None:
    """The factors of this efficiency; None if the ranks' solo times are not known.

    With C the compute time and T the step time, alone or with all: T_alone / T_all =
    [mean C_alone / mean C_all] x [mean C_all / max C_all] x [(max C_all / T_all) / (mean C_alone / T_alone)].
    The first two factors are those of the POP efficiency model.
    """
    solo_ms = [ms for r in training.ranks if (ms := known(r.solo_compute_ms))]
    together_ms = [r.compute_ms for r in training.ranks]
    if len(solo_ms) < len(training.ranks) or min(together_ms, default=0.0) <= 0:
        return None
    mean_ms = sum(together_ms) / len(together_ms)
    concurrency = sum(solo_ms) / len(solo_ms) / mean_ms
    balance = mean_ms / max(together_ms)
    return EfficiencyFactors(concurrency, balance, efficiency / (concurrency * balance))


def _likely(factors: EfficiencyFactors | None) -> str:
    """The largest of the three losses, as text."""
    if factors is None:
        return "the GPUs wait for each other's gradients: a slow path between them, or one slow rank"
    least = min(factors.concurrency, factors.balance, factors.communication)
    if least == factors.concurrency:
        return "each GPU computes slower while the others do: shared power, cooling, or host CPUs"
    if least == factors.balance:
        return "one rank is slower than the others, and all wait for it"
    return "the GPUs wait for each other's gradients: a slow path between them"


def _direct(case: Case, training: Training) -> bool:
    """Whether every two GPUs of the run can reach each other directly; true if that is not known."""
    gpus = {gpu.index for gpu in gpus_of(case, [rank.rank for rank in training.ranks])}
    pairs = [pair for pair in case.pairs if {pair.a, pair.b} <= gpus]
    return all(known(pair.nvlinks) or known(pair.p2p_read) in ("OK", None) for pair in pairs)


def _good(case: Case, ranks: int) -> float:
    """The expected efficiency: interpolated between 2, 4 and 8 ranks on a log scale, that of 8 for more."""
    two, four, eight = (case.limit(limit) for limit in (_EFFICIENCY_2, _EFFICIENCY_4, _EFFICIENCY_8))
    if ranks >= 8:
        return eight
    if ranks >= 4:
        return four + (eight - four) * (log2(ranks) - 2)
    return two + (four - two) * (log2(ranks) - 1)


@check("train.bucket", needs_gpu=False, limits=(_GAIN,))
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
