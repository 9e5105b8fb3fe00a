"""What all checks of parallel strategies judge: that the strategy ran, and trained what one rank alone trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, Status, fail, ok, unknown
from gpudoctor.checks.core.registry import CheckFunction, check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.measured.probe_outcome import absent, judged_problems, mode_that_closes, not_judged, problems_of
from gpudoctor.checks.measured.ranks import rank_subject, ranks_in_words
from gpudoctor.facts.model.measured_strategies import Strategies, StrategyRank, StrategyRun
from gpudoctor.text.units import seconds_text, short_mib

PROBE = "strategy"
TOLD_BY = "strategy.ddp"  # the check that reports problems of the whole probe
# the variants of strategies that run more than one train
_VARIANTS = {"fsdp": {"fsdp", "fsdp-bf16"}, "fsdp1": {"fsdp1", "fsdp1-bf16"}, "pipeline": {"gpipe", "1f1b"}}
# used by every strategy's check; fp32 measured at 3e-7 and bf16 at 1e-3 on 2 to 8 CPU ranks, and at 7e-7 and 2e-3
# for the larger model that GPUs train (its parts summed on a CPU)
FP32_ERROR = Limit(
    1e-4, "relative", "rounding of fp32 over ten steps, measured at 3e-7, with room", name="fp32_error", status="fail"
)
BF16_ERROR = Limit(
    1e-2, "relative", "rounding of bf16 over ten steps, measured at 1e-3, with room", name="bf16_error", status="fail"
)
_TOLERANCES = {"fp32": FP32_ERROR, "bf16": BF16_ERROR}
ADVICE = (
    Advice("Check arithmetic and collectives alone.", "gpudoctor check collective compute --level full"),
    Advice("Run it again: a fault that comes and goes is the hardware's.", "gpudoctor check strategy --level full"),
)


def strategy_check(
    strategy: str, limits: tuple[Limit, ...], explains: Iterable[Explains] = ()
) -> Callable[[CheckFunction], CheckFunction]:
    """Register the check of a parallel strategy: it runs on CPU ranks too."""
    return check(f"strategy.{strategy}", needs_gpu=False, limits=limits, explains=explains)


def runs_of(case: Case, strategy: str) -> tuple[StrategyRun, ...]:
    """The variants of one strategy that at least one rank completed."""
    tried = case.measurements.strategies
    return tuple(run for run in tried.runs if run.strategy == strategy) if tried is not None else ()


def judged_strategy(
    case: Case,
    strategy: str,
    what: str,
    *,
    likely: str,
    who: str | None = None,
    wrong: Sequence[Finding] = (),
) -> Iterator[Finding]:
    """The findings that every strategy has; one pass for each variant without any error.

    `what` is the strategy's name in text ("tensor parallelism"), `likely` the cause of a deviation, and `who` the
    text for what trained, if not torch's ranks. `wrong` are findings that blame a rank: its error makes every rank's
    weights wrong, so other fails are then left out. The limits used here must be among those of the calling check.
    """
    yield from wrong
    for finding in _judged(case, strategy, what, likely, who):
        if not wrong or finding.status is not Status.FAIL:
            yield finding


def _judged(case: Case, strategy: str, what: str, likely: str, who: str | None) -> Iterator[Finding]:
    check_id = f"strategy.{strategy}"
    tried, runs = case.measurements.strategies, runs_of(case, strategy)
    if check_id == TOLD_BY:
        yield from judged_problems(case, PROBE)
    elif tried is None or not _came_through(tried, strategy, runs):
        yield from not_judged(case, PROBE, what, TOLD_BY)
    problems = problems_of(case, PROBE)
    if tried is None or not (runs or strategy in tried.not_run):
        if not problems:
            yield absent(case, PROBE, what) if tried is None else unknown(NODE, f"{what}: no rank reported a result")
        return
    if strategy in tried.not_run:
        missing = tried.not_run[strategy]
        # CUDA refused a second process on a GPU: no fault if a compute mode explains it, otherwise unexplained
        if missing.kind == "denied" and not any(map(mode_that_closes, case.gpus)):
            yield unknown(NODE, f"{what}: {missing.reason}")
        else:
            yield unread(NODE, what, missing)
    for run in runs:
        expected = _ranks_of(tried, strategy)
        tolerance = _TOLERANCES[run.dtype]
        limit, source = case.limit(tolerance), case.limit_source(tolerance)
        wrong = list(_weights(case, run, limit, source, likely))
        if len(run.ranks) == expected:
            wrong += _losses(tried, run, limit, source, likely)
            if any(finding.status is Status.FAIL for finding in wrong):
                wrong = list(_first_astray(case, run, limit, source)) or wrong
        else:
            # the mean over some parts of a batch is not that of the batch
            wrong.append(unknown(NODE, f"{run.variant}: {len(run.ranks)} of {expected} ranks reported"))
        wrong = [*_missing(run), *wrong]
        yield from wrong or [_agrees(tried, run, who or ranks_in_words(case, tried.world_size))]


def _came_through(tried: Strategies, strategy: str, runs: tuple[StrategyRun, ...]) -> bool:
    """Whether all variants of a strategy were completed before a later strategy failed."""
    done = {run.variant for run in runs if len(run.ranks) == _ranks_of(tried, strategy)}
    return done >= _VARIANTS.get(strategy, {strategy}) or strategy in tried.not_run


def _ranks_of(tried: Strategies, strategy: str) -> int:
    # a process that uses all GPUs itself is one rank
    return 1 if strategy == "dp" else tried.world_size


def mean_losses(run: StrategyRun) -> list[float | None]:
    """The loss of each step over the whole batch: the mean over the ranks that have one; None if not finite."""
    reported = [rank.losses for rank in run.ranks if rank.losses]
    if len({len(losses) for losses in reported}) > 1:
        return []
    found: list[float | None] = []
    for step in zip(*reported, strict=True):
        finite = [loss for loss in step if loss is not None]
        found.append(sum(finite) / len(finite) if len(finite) == len(step) else None)
    return found


def cost_in_words(run: StrategyRun) -> str:
    """Time, traffic and memory of a step as text: the maximum over the ranks."""
    step_ms = max(rank.step_ms for rank in run.ranks)
    sent = [rank.communicated_bytes for rank in run.ranks if isinstance(rank.communicated_bytes, int)]
    traffic = f", {short_mib(max(sent))} exchanged" if sent else ""
    step = seconds_text(step_ms / 1e3)
    return f"step {step}{traffic}, {short_mib(max(held_bytes(rank) for rank in run.ranks))} a rank"


def held_bytes(rank: StrategyRank) -> int:
    """The bytes that a rank held: the GPU's peak, or without one the sum of what was counted."""
    memory = rank.memory
    if isinstance(memory.peak_bytes, int):
        return memory.peak_bytes
    retained = memory.activations_bytes if isinstance(memory.activations_bytes, int) else 0
    return memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes + retained


def loss_error(tried: Strategies, run: StrategyRun) -> float | None:
    """The largest relative difference of a step's loss from that of one rank alone; None if one was not finite."""
    alone = tried.reference.losses_bf16 if run.dtype == "bf16" else tried.reference.losses
    found = mean_losses(run)
    if len(found) != len(alone):
        return None
    errors = [
        abs(loss - right) / abs(right) if loss is not None and right is not None else float("nan")
        for loss, right in zip(found, alone, strict=True)
    ]
    # max() would ignore a NaN
    return max(errors) if all(map(isfinite, errors)) else None


def _agrees(tried: Strategies, run: StrategyRun, who: str) -> Finding:
    text = f"{run.variant}: {tried.steps} steps on {who} as on one alone ({cost_in_words(run)})"
    errors = [rank.weights_error for rank in run.ranks if rank.weights_error is not None]
    return ok(
        NODE,
        text,
        None,
        Evidence(f"{run.variant} weights", f"{max(errors):.2g} off at most, {run.dtype}"),
        Evidence(f"{run.variant} loss", f"{loss_error(tried, run) or 0.0:.2g} off at most"),
    )


def _missing(run: StrategyRun) -> Iterator[Finding]:
    if run.missing_weights:
        names = ", ".join(run.missing_weights[:3])
        yield fail(
            NODE,
            f"{run.variant}: no rank held {len(run.missing_weights)} of the weights at the end ({names})",
            "every weight on some rank",
            Evidence("probe", f"{len(run.missing_weights)} names without a tensor"),
        )
    silent = [rank.rank for rank in run.ranks if not rank.compared]
    if silent:
        yield unknown(NODE, f"{run.variant}: rank {silent[0]} compared no weights")


def _losses(tried: Strategies, run: StrategyRun, limit: float, source: str, likely: str) -> Iterator[Finding]:
    alone = tried.reference.losses_bf16 if run.dtype == "bf16" else tried.reference.losses
    found = mean_losses(run)
    if None in alone:
        yield unknown(NODE, f"{run.variant}: one rank alone had a loss that was not finite; nothing to compare with")
        return
    if len(found) != len(alone):
        yield unknown(NODE, f"{run.variant}: {len(found)} losses for {len(alone)} steps")
        return
    error = loss_error(tried, run)
    if error is not None and error <= limit:
        return
    worst = next((step for step, loss in enumerate(found) if loss is None), 0)
    text = (
        f"{run.variant}: the loss is off by {error:.2g} from that of one rank alone"
        if error is not None
        else f"{run.variant}: the loss was no finite number in step {worst + 1}"
    )
    yield fail(
        NODE,
        Found(text, error if error is not None else "not finite"),
        Expected(f"the loss of the same steps on one rank, within {limit:g}", "<=", limit, "relative", source),
        Evidence(f"{run.variant} loss", _in_words(found)),
        Evidence("loss on one rank alone", _in_words(alone)),
        likely=likely,
        advice=ADVICE,
    )


def _first_astray(case: Case, run: StrategyRun, limit: float, source: str) -> Iterator[Finding]:
    """Findings for the ranks whose own loss was wrong first, if the others' were right in that step.

    From the next step on every rank's loss is wrong, as they share the gradients.
    """
    if any(len(rank.expected_losses) != len(rank.losses) or not rank.losses for rank in run.ranks):
        return
    steps = range(min(len(rank.losses) for rank in run.ranks))
    step = next((step for step in steps if any(_astray(rank, step, limit) for rank in run.ranks)), None)
    if step is None:
        return
    astray = [rank for rank in run.ranks if _astray(rank, step, limit)]
    if len(astray) == len(run.ranks):
        return
    for rank in astray:
        loss, right = rank.losses[step], rank.expected_losses[step]
        found = "no finite number" if loss is None else f"{loss:.5g}"
        text = f"{run.variant}: its loss in step {step + 1} was {found}, when the other ranks' were right"
        yield fail(
            rank_subject(case, rank.rank),
            Found(text, "not finite" if loss is None else loss),
            Expected(f"{right:.5g} as on one rank alone, within {limit:g} of it", None, right, None, source),
            Evidence(f"{run.variant}, rank {rank.rank}: losses", _in_words(rank.losses)),
            Evidence("the same data on one rank alone", _in_words(rank.expected_losses)),
            likely="what this rank was given or computed: weights gathered in part, or its own arithmetic",
            advice=ADVICE,
        )


def _astray(rank: StrategyRank, step: int, limit: float) -> bool:
    loss, right = rank.losses[step], rank.expected_losses[step]
    if right is None:
        return False
    return loss is None or not abs(loss - right) <= limit * abs(right)


def _weights(case: Case, run: StrategyRun, limit: float, source: str, likely: str) -> Iterator[Finding]:
    # every rank's copy is made of all ranks' parts: if all are off, no single one is at fault
    off = [rank for rank in run.ranks if rank.weights_error is None or not rank.weights_error <= limit]
    if not off:
        return
    everyone = len(off) == len(run.ranks)
    worst = max(off, key=lambda rank: float("inf") if rank.weights_error is None else rank.weights_error)
    for rank in [worst] if everyone else off:
        error = "not finite" if rank.weights_error is None else f"off by {rank.weights_error:.2g}"
        where = f", worst in {rank.worst_weight}" if rank.worst_weight else ""
        yield fail(
            NODE if everyone else rank_subject(case, rank.rank),
            Found(f"{run.variant}: its weights after the steps are {error}{where}", rank.weights_error or "not finite"),
            Expected(f"the weights of the same steps on one rank, within {limit:g}", "<=", limit, "relative", source),
            Evidence(f"{run.variant}, rank {rank.rank}", f"{rank.compared} numbers compared, {error}{where}"),
            likely=likely,
            advice=ADVICE,
        )


def _in_words(losses: Iterable[float | None]) -> str:
    return " ".join("none" if loss is None else f"{loss:.5g}" for loss in losses)
