"""burn.drift: did the GPUs become slower under sustained load, and which?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.measured.probe_outcome import absent, left_open
from gpudoctor.checks.measured.ranks import on_gpus, rank_count, rank_gpu, rank_subject, ranks_in_words, ranks_of
from gpudoctor.checks.measured.slowness import is_shared, slowness_causes
from gpudoctor.checks.measured.under_load import load_of, median, percent
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.telemetry import Burn, Series
from gpudoctor.text.grouped import grouped

_RULE = "SuperBench's rule for a run against an earlier one of its own"
# Metric prefix, the probe that measures it, and whether only the GPU itself matters (no host, no other GPU)
_PROBES = (
    ("all_reduce", "collective", False),
    ("host to device", "link", False),
    ("device to host", "link", False),
    ("gemm", "compute", True),
    ("memory copy", "compute", True),
    ("train compute", "train", True),
    ("train step", "train", False),
)
_WARN_LOSS = Limit(0.05, "of the speed", _RULE, name="warn_loss")
_FAIL_LOSS = Limit(0.10, "of the speed", f"{_RULE}; on one GPU, not on all", name="fail_loss")
_LEAST_S = Limit(90, "s", "first half minute and last minute may not be the same one", name="least_s")


@check(
    "burn.drift",
    needs_gpu=False,
    limits=(_WARN_LOSS, _FAIL_LOSS, _LEAST_S),
)
def drift(case: Case) -> Iterator[Finding]:
    """Compare the last minute with the first half minute, for each rank and figure."""
    burn = case.measurements.burn
    if burn is None:
        yield absent(case, "burn", "drift under load")
        return
    yield from ended_early(case, "drift under load")
    who = ranks_in_words(case, rank_count(case))
    rounds = f"{burn.rounds} round{'s' if burn.rounds != 1 else ''} in {length_in_words(burn.duration_s)}"
    drifts = [_drift(case, series, burn.series) for series in burn.series]
    most = max(drifts, key=lambda d: d.loss, default=None)
    if not on_gpus(case):
        changed = f"; most changed: {_of_rank(most)}{most.words}" if most else ""
        yield skip(NODE, f"{who}: {rounds}{changed}, not judged")
        return
    too_little = _too_little(case, burn, rounds)
    if too_little is not None:
        yield too_little
        return
    slower = [d for d in drifts if d.loss >= case.limit(_WARN_LOSS, rank_gpu(case, d.series.rank))]
    yield from _judged(case, [d for d in slower if d.steady])
    yield from _noisy(case, [d for d in slower if not d.steady])
    if most and not slower and not case.measurements.problems:
        text = f"{who}, {rounds}: most changed is {_of_rank(most)}{most.words}"
        yield ok(NODE, Found(text, round(most.loss, 3), "share"), _expected(case, _WARN_LOSS))


class SpeedChange(msgspec.Struct, frozen=True):
    """How one figure changed, as a share of its speed (0.1: a tenth was lost).

    `alone`: the peers' same figure did not change with it. `steady`: early and late values do not overlap, so the
    change is not random.
    """

    series: Series
    loss: float
    steady: bool
    alone: bool

    @property
    def words(self) -> str:
        early, late = self.series.early.median, self.series.late.median
        change = f"{percent(self.loss)} slower" if self.loss >= 0 else f"{percent(-self.loss)} faster"
        return f"{self.series.metric} {change} ({early:.4g} to {late:.4g} {self.series.unit})"


def ended_early(case: Case, what: str) -> Iterator[Finding]:
    """One finding for each problem that ended the burn early: later results are unknown."""
    for problem in case.measurements.problems:
        yield left_open(case, problem, what, f"the burn did not come to its end, {problem.text}")


def length_in_words(seconds: float) -> str:
    """
    >>> length_in_words(41.7), length_in_words(600.2)
    ('42 s', '10.0 min')
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _noisy(case: Case, drifts: Sequence[SpeedChange]) -> Iterator[Finding]:
    """One finding for each rank, and first one for the figures of all ranks."""
    for rank in sorted({d.series.rank for d in drifts}, key=lambda rank: -1 if rank is None else rank):
        texts = "; ".join(d.words for d in drifts if d.series.rank == rank)
        yield unknown(rank_subject(case, rank), f"too noisy to judge: {texts}, but early and late values overlap")


def _too_little(case: Case, burn: Burn, rounds: str) -> Finding | None:
    """A finding if the burn was too short to judge drift; None otherwise."""
    least_s = case.limit(_LEAST_S)
    if burn.asked_s < least_s:
        return skip(NODE, f"drift under load: {rounds}; {least_s:g} s at least tell anything (--duration)")
    if burn.duration_s < least_s or burn.rounds < 2 or not burn.series:
        return unknown(NODE, f"drift under load: {rounds} of the {burn.asked_s:g} s asked for are too few to compare")
    return None


def _drift(case: Case, series: Series, every: Sequence[Series]) -> SpeedChange:
    others = [
        _loss(other)
        for other in every
        if (other.metric, other.unit) == (series.metric, series.unit)
        and None not in (series.rank, other.rank)
        and other.rank != series.rank
        and _model(case, other) == _model(case, series)
    ]
    usual = median(others)
    alone = usual is not None and usual < case.limit(_WARN_LOSS, rank_gpu(case, series.rank))
    early, late = series.early, series.late
    steady = late.low > early.high if _in_time(series) else late.high < early.low
    return SpeedChange(series, _loss(series), steady, alone)


def _model(case: Case, series: Series) -> str | None:
    gpu = rank_gpu(case, series.rank)
    return known(gpu.name) if gpu else None


def _in_time(series: Series) -> bool:
    return series.unit in ("us", "ms")


def _loss(series: Series) -> float:
    """The share of speed that was lost: 0.1 if a rate fell by a tenth, or a time grew by a ninth."""
    early, late = series.early.median, series.late.median
    before, after = (late, early) if _in_time(series) else (early, late)
    return 1 - after / before if before > 0 else 0.0


def _judged(case: Case, drifts: Sequence[SpeedChange]) -> Iterator[Finding]:
    """One finding for each rank that became slower alone, and one for what became slower everywhere."""
    for rank in sorted({d.series.rank for d in drifts if d.alone and d.series.rank is not None}):
        yield _slower(case, rank, [d for d in drifts if d.alone and d.series.rank == rank])
    if together := grouped((each.series.metric, each) for each in drifts if not each.alone):
        worst = [max(each, key=lambda d: d.loss) for each in together.values()]
        most = max(worst, key=lambda d: d.loss)
        yield warn(
            NODE,
            Found("; ".join(f"{_of_rank(d)}{d.words}" for d in worst), round(most.loss, 3), "share"),
            _expected(case, _WARN_LOSS),
            *(_evidence(d) for d in worst),
            likely="no GPU stands out: all of them warm up, or share what slows them (air, power, host)",
            advice=(
                Advice("See whether it goes on.", "gpudoctor check --level burn --duration 30m"),
                Advice("Look at temperatures and power under load.", "gpudoctor check gpu.temperature gpu.throttle -v"),
            ),
        )


def _slower(case: Case, rank: int, drifts: Sequence[SpeedChange]) -> Finding:
    gpu = rank_gpu(case, rank)
    worst = max(drifts, key=lambda d: d.loss)
    own = [d for d in drifts if _probe(d)[1] and d.loss >= case.limit(_FAIL_LOSS, gpu)]
    kind, judge = (_FAIL_LOSS, fail) if own and not (gpu and is_shared(gpu)) else (_WARN_LOSS, warn)
    reasons = _causes(case, rank, _probe(worst)[0])
    return judge(
        rank_subject(case, rank),
        Found("; ".join(d.words for d in drifts), round(worst.loss, 3), "share"),
        _expected(case, kind, gpu),
        *(_evidence(d) for d in drifts),
        likely="; ".join(reasons) or "no reading explains it: most often cooling that does not keep up",
        advice=(
            Advice("Look at its temperature, power and clocks.", "gpudoctor check gpu.temperature gpu.throttle -v"),
            Advice("Look at its fans, heat sink and air flow; then swap it with another GPU."),
        ),
    )


def _probe(drift: SpeedChange) -> tuple[str, bool]:
    return next((probe, own) for start, probe, own in _PROBES if drift.series.metric.startswith(start))


def _causes(case: Case, rank: int, during: str) -> list[str]:
    """What changed on this GPU during the load, and how it differs from its peers."""
    gpu = rank_gpu(case, rank)
    if gpu is None:
        return []
    found = []
    whole = load_of(case, gpu, "burn")
    heat = whole.readings.get("temperature_c") if whole else None
    if heat is not None and heat.high - heat.low >= 10:
        found.append(f"its temperature rose from {heat.low:.0f} to {heat.high:.0f} C")
    return found + slowness_causes(case, rank, ranks_of(case), during)


def _evidence(drift: SpeedChange) -> Evidence:
    series = drift.series
    early, late = (f"{s.low:.4g} to {s.high:.4g}" for s in (series.early, series.late))
    text = f"first half minute {early}, last minute {late} {series.unit} ({series.values} values)"
    return Evidence(f"{_of_rank(drift)}{series.metric}", text)


def _of_rank(drift: SpeedChange) -> str:
    return "" if drift.series.rank is None else f"rank {drift.series.rank} "


def _expected(case: Case, limit: Limit, gpu: Gpu | None = None) -> Expected:
    share, source = case.limit(limit, gpu), case.limit_source(limit, gpu)
    return Expected(f"less than {percent(share)} slower at the end", "<", share, "share", source)
