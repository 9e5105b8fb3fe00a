"""train.sync: do all ranks still agree after a few DDP steps, and did the loss fall?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, unknown
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.measured.probe_outcome import SYNC, judged_outcome, problems_of
from gpudoctor.checks.measured.ranks import rank_subject, ranks_in_words
from gpudoctor.facts.model.measurements import Training
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.profiles.profile import majority

_GRADIENT_ERROR = Limit(
    1e-2, "relative", "tolerance of bf16; fp32 measured at 3.3e-7", name="gradient_error", status="fail"
)


@check(
    SYNC,
    needs_gpu=False,
    limits=(_GRADIENT_ERROR,),
    explains=(Explains(("train.*", "burn.*"), anywhere=True, gaps=True), Explains(("strategy.*",), anywhere=True)),
)
def sync(case: Case) -> Iterator[Finding]:
    """Fail if weights differ between ranks, a gradient is wrong, or the loss did not fall."""
    training = case.measurements.training
    yield from judged_outcome(case, "train", "DDP train", measured=training is not None)
    if training is None:
        return
    if not training.ranks:
        yield unknown(NODE, "DDP train: no rank reported a result")
        return
    wrong = [*_weights(case, training), *_gradients(case, training), *_losses(case, training)]
    yield from wrong
    unhashed = [r.rank for r in training.ranks if not r.weights_sha256]
    if unhashed and len(training.ranks) > 1:
        yield unknown(NODE, f"DDP train: ranks {', '.join(map(str, unhashed))} reported no weights to compare")
    elif len(training.ranks) < training.world_size:
        yield unknown(NODE, f"DDP train: {len(training.ranks)} of {training.world_size} ranks reported")
    elif not wrong and not problems_of(case, "train"):
        yield _in_step(case, training)


def _in_step(case: Case, training: Training) -> Finding:
    who = ranks_in_words(case, training.world_size)
    first, last = _mean(r.loss_first for r in training.ranks), _mean(r.loss_last for r in training.ranks)
    agree = "weights equal on all ranks, " if training.world_size > 1 else ""
    text = f"{training.steps} DDP steps on {who}: {agree}loss {first:.3g} to {last:.3g}"
    return ok(NODE, text, None, Evidence("weights SHA-256", training.ranks[0].weights_sha256[:16]))


def _weights(case: Case, training: Training) -> Iterator[Finding]:
    hashes = {r.rank: r.weights_sha256 for r in training.ranks if r.weights_sha256}
    if len(set(hashes.values())) < 2:
        return
    right = majority(hashes.values())
    outliers = [rank for rank, digest in hashes.items() if digest != right] if right is not None else []
    evidence = tuple(Evidence(f"weights of rank {rank}", digest[:16]) for rank, digest in hashes.items())
    for subject in [rank_subject(case, rank) for rank in outliers] or [NODE]:
        yield fail(
            subject,
            "its weights differ from those of the other ranks" if outliers else "the ranks end with different weights",
            "the same weights, bit for bit, on every rank",
            *evidence,
            likely="silent corruption: memory, a link, or the GPU's arithmetic",
            advice=(
                Advice("Run it again.", "gpudoctor check train"),
                Advice("Look for memory and link errors.", "gpudoctor check gpu.ecc gpu.xid nvlink.errors"),
                Advice("Until it is found, train nothing on this node."),
            ),
        )


def _gradients(case: Case, training: Training) -> Iterator[Finding]:
    steps = (Advice("Check the collectives alone.", "gpudoctor check collective.correct"),)
    if training.contribution_ok is False:
        yield fail(
            NODE,
            "the summed gradient does not hold every rank's part",
            "the code of every rank in the sum",
            Evidence("probe", "sum of 2^rank"),
            likely="a collective dropped or doubled a part",
            advice=steps,
        )
    error, limit = known(training.gradient_error), case.limit(_GRADIENT_ERROR)
    if isinstance(training.gradient_error, Missing) and training.gradient_error.kind == "failed":
        yield unread(NODE, "gradient against one rank's own", training.gradient_error)
    # not "error > limit": NaN must fail too
    if error is not None and not error <= limit:
        yield fail(
            NODE,
            Found(f"the DDP gradient is off by {error:.2g}", error if isfinite(error) else str(error)),
            Expected(f"at most {limit:g}", "<=", limit, "relative", case.limit_source(_GRADIENT_ERROR)),
            Evidence("probe", "compared with one rank computing every shard"),
            likely="sums that are wrong, or averaged wrongly",
            advice=steps,
        )


def _losses(case: Case, training: Training) -> Iterator[Finding]:
    bad = [r for r in training.ranks if r.loss_first is None or r.loss_last is None]
    # NaN spreads to every rank with the next gradient: blame the ranks that had it first
    began = min((r.nonfinite_step for r in bad if r.nonfinite_step is not None), default=None)
    for rank in bad:
        if rank.nonfinite_step != began:
            continue
        when = f" in step {began}" if began is not None else ""
        yield fail(
            rank_subject(case, rank.rank),
            f"its loss was no finite number any more{when}",
            "a finite loss",
            Evidence("first step with a loss that is not finite", str(began) if began is not None else "not known"),
            likely="a wrong result in arithmetic or memory: this small train cannot diverge by itself",
            advice=(Advice("Run it again, and look for memory errors.", "gpudoctor check train gpu.ecc gpu.xid"),),
        )
    if bad:
        return
    first, last = _mean(r.loss_first for r in training.ranks), _mean(r.loss_last for r in training.ranks)
    if last >= first:
        yield fail(
            NODE,
            Found(f"the loss went from {first:.4g} to {last:.4g} in {training.steps} steps", last),
            Expected("a lower loss at the end", "<", first),
            Evidence("probe", f"loss {first:.4g} -> {last:.4g}"),
            likely="gradients that are wrong on every rank",
            advice=(Advice("Check the collectives alone.", "gpudoctor check collective.correct"),),
        )


def _mean(values: Iterable[float | None]) -> float:
    known_values = [value for value in values if value is not None]
    return sum(known_values) / len(known_values)
