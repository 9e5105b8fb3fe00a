"""strategy.tensor, strategy.pipeline, strategy.3d: does a model that is split over ranks train correctly here?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.measured.ranks import on_gpus, rank_subject, ranks_in_words
from gpudoctor.checks.strategy.agreement import FP32_ERROR, judged_strategy, runs_of, strategy_check
from gpudoctor.facts.model.measured_strategies import StrategyRun
from gpudoctor.text.units import short_mib

_WRONG_SHARDS = "wrong_shards_rank_"
_BUBBLE_EXCESS = Limit(
    0.15,
    "of a step",
    "gpudoctor's own choice: a transfer is short against a stage of 5 ms",
    name="bubble_excess",
    status="warn",
)


@strategy_check("tensor", (FP32_ERROR,))
def tensor(case: Case) -> Iterator[Finding]:
    """Fail a rank that held a wrong part of a weight; without one, fail if losses or weights deviate."""
    wrong = [finding for run in runs_of(case, "tensor") for finding in _wrong_shards(case, run)]
    likely = "a sum over the ranks that is wrong, or a rank's arithmetic"
    yield from judged_strategy(case, "tensor", "tensor parallelism", likely=likely, wrong=wrong)


def _wrong_shards(case: Case, run: StrategyRun) -> Iterator[Finding]:
    counts = {
        int(name.removeprefix(_WRONG_SHARDS)): int(count)
        for name, count in run.figures.items()
        if name.startswith(_WRONG_SHARDS)
    }
    for rank, count in sorted(counts.items()):
        of = "one weight" if count == 1 else f"{count} weights"
        off = next((r.weights_error for r in run.ranks if r.rank == rank), None)
        yield fail(
            rank_subject(case, rank),
            Found(f"{run.variant}: it held a wrong part of {of} before the first step", count),
            Expected("its own part of every weight, bit for bit", "==", 0),
            Evidence("probe", f"rank {rank}: {of} not equal, bit for bit"),
            Evidence(f"{run.variant} weights after the steps", "not finite" if off is None else f"off by {off:.2g}"),
            likely="the part was changed on its way to the rank, or in its memory",
            advice=(
                Advice("Look for memory and link errors.", "gpudoctor check gpu.ecc gpu.xid nvlink.errors"),
                Advice("Check arithmetic and collectives alone.", "gpudoctor check collective compute --level full"),
            ),
        )


@strategy_check(
    "pipeline",
    (FP32_ERROR, _BUBBLE_EXCESS),
)
def pipeline(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate under GPipe or 1F1B; warn if stages on GPUs idle for too long."""
    yield from judged_strategy(
        case,
        "pipeline",
        "pipeline parallelism",
        likely="an activation or a gradient that arrived changed, or with another microbatch",
    )
    for run in runs_of(case, "pipeline"):
        yield _bubble(case, run)


def _bubble(case: Case, run: StrategyRun) -> Finding:
    found, ideal = run.figures.get("bubble_share"), run.figures.get("bubble_share_expected")
    if found is None or ideal is None:
        return unknown(NODE, f"{run.variant}: its bubble was not measured")
    stages, microbatches = run.figures.get("stages", 0), run.figures.get("microbatches", 0)
    by = "torch's own schedule" if run.figures.get("torch_schedule") else "sends and receives of gpudoctor's"
    text = f"{run.variant}: the stages idle for {found:.0%} of a step ({ideal:.0%} by the formula){_kept(run)}"
    evidence = (
        Evidence("(p-1)/(m+p-1)", f"{stages:g} stages, {microbatches:g} microbatches: {ideal:.3f}"),
        Evidence("schedule", by),
    )
    if not on_gpus(case):
        return skip(NODE, f"{ranks_in_words(case, len(run.ranks))}: {text}, not judged")
    limit = case.limit(_BUBBLE_EXCESS)
    most = round(ideal + limit, 3)
    source = case.limit_source(_BUBBLE_EXCESS)
    measured = Found(text, round(found, 3), "of a step")
    expected = Expected(f"at most {most:.0%} of a step", "<=", most, "of a step", source)
    if found <= most:
        return ok(NODE, measured, expected, *evidence)
    return warn(
        NODE,
        measured,
        expected,
        *evidence,
        likely="a slow path between neighbouring GPUs, or a GPU that is slower than the others",
        advice=(
            Advice("Measure every pair of GPUs.", "gpudoctor check collective.pairs link.peer --level full"),
            Advice("See whether one GPU is slow.", "gpudoctor check train.balance"),
        ),
    )


def _kept(run: StrategyRun) -> str:
    retained = [r.memory.activations_bytes for r in run.ranks if isinstance(r.memory.activations_bytes, int)]
    held = run.figures.get("microbatches_held")
    if not retained or held is None:
        return ""
    return f", and the first keeps {held:g} microbatches ({short_mib(max(retained))} of activations a rank at most)"


@strategy_check("3d", (FP32_ERROR,))
def three_d(case: Case) -> Iterator[Finding]:
    """Fail if losses or weights deviate under data x tensor x pipeline; report the split."""
    yield from judged_strategy(
        case, "3d", "data x tensor x pipeline", likely="a group of ranks that exchanged with the wrong members"
    )
    for run in runs_of(case, "3d"):
        copies, shards, stages = (run.figures.get(name, 0) for name in ("data", "shards", "stages"))
        if copies == 1:
            ranks, split = ranks_in_words(case, len(run.ranks)), f"tensor {shards:g} x pipeline {stages:g}"
            yield skip(NODE, f"{ranks}: a split in two dimensions was run, {split}; all three need 8")
        elif copies:
            yield ok(NODE, f"{run.variant}: data {copies:g} x tensor {shards:g} x pipeline {stages:g}")
