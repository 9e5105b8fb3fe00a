"""Judging one device's rate by its peers and by the known rates of its model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from gpudoctor.checks.compute.exact import EXACT
from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.peer_ranks import other_processes, ranks_without_figures, slowing_setting, slowness_causes
from gpudoctor.checks.core.probe_outcome import not_judged, not_measured, rank_gpu, rank_subject
from gpudoctor.facts.model.measured_devices import ComputeRank

_LOOK = (
    Advice("Look at its clocks, temperature and power.", "gpudoctor check gpu -v"),
    Advice("Swap it with another GPU, or take it out of the job, and see whether the slowness moves."),
)


class Yardstick(msgspec.Struct, frozen=True):
    """The share of the reference rate `of` that was reached, and its limits; `fail` is None if it must not fail a GPU.

    `what` describes the reference in text; `by_peers`: it comes from other GPUs of this node.
    """

    share: float
    of: float
    warn: Limit
    fail: Limit | None
    what: str
    allowance: float = 1.0
    by_peers: bool = False


class MeasuredRate(msgspec.Struct, frozen=True):
    """One rank's figure: the value to judge, its text, its yardsticks, and its `noise` in the unit of `value`."""

    rank: int
    value: float
    text: str
    bars: tuple[Yardstick, ...]
    evidence: tuple[Evidence, ...]
    noise: float = 0.0


def compute_gaps(case: Case, what: str, done: Sequence[ComputeRank]) -> Iterator[Finding]:
    """Why the compute probe has no figure of this kind, or none for some ranks."""
    if not done:
        yield from not_measured(case, "compute", what, EXACT)
        return
    yield from not_judged(case, "compute", what, EXACT)
    yield from ranks_without_figures(case, "compute", (each.rank for each in done), what)


def judged_rate(case: Case, rate: MeasuredRate, group: Sequence[int], unit: str) -> Finding:
    """Judge by the worst yardstick. A GPU that is slow because of a setting or another program's work never fails."""
    subject, gpu = rank_subject(case, rate.rank), rank_gpu(case, rate.rank)
    if gpu is None:
        return unknown(subject, f"{rate.text}, not judged: it is not known which GPU this was")
    if not rate.bars:
        why = "no figure is known for this model, and no other GPU of it is here"
        return skip(subject, f"{rate.text}, not judged: {why}")
    found = Found(rate.text, round(rate.value, 2), unit)
    verdicts = [(bar, kind) for bar in rate.bars if (kind := _verdict(case, bar, rate)) is not None]
    if not verdicts:
        return ok(subject, found, _expected(case, rate, rate.bars[0], "warn", unit), *rate.evidence)
    bar, kind = min(verdicts, key=lambda one: (one[1] == "warn", one[0].share))
    if others := other_processes(case, rate.rank):
        return unknown(subject, f"{rate.text}: slow, but {others}: too disturbed to judge", *rate.evidence)
    if rate.noise and bar.of - rate.value < rate.noise:
        text = f"{rate.text}: too noisy to judge, its own laps differ by {rate.noise / 3:.2g} {unit} (MAD)"
        return unknown(subject, text, *rate.evidence, advice=("Repeat it while nothing else runs on the node.",))
    setting, found_reasons = slowing_setting(case, rate.rank, group), slowness_causes(case, rate.rank, group, "compute")
    explained = setting is not None or (not bar.by_peers and bool(found_reasons))
    judge = fail if kind == "fail" and not explained else warn
    causes = [*([setting] if setting and not any("power limit" in r for r in found_reasons) else []), *found_reasons]
    return judge(
        subject,
        found,
        _expected(case, rate, bar, kind, unit),
        *rate.evidence,
        likely="; ".join(causes) or "no reading explains it: the GPU itself is slow",
        advice=_LOOK,
    )


def _verdict(case: Case, bar: Yardstick, rate: MeasuredRate) -> Literal["warn", "fail"] | None:
    gpu = rank_gpu(case, rate.rank)
    if bar.fail is not None and bar.share < case.limit(bar.fail, gpu) * bar.allowance:
        return "fail"
    return "warn" if bar.share < case.limit(bar.warn, gpu) * bar.allowance else None


def _expected(case: Case, rate: MeasuredRate, bar: Yardstick, kind: Literal["warn", "fail"], unit: str) -> Expected:
    gpu = rank_gpu(case, rate.rank)
    limit = bar.fail if kind == "fail" and bar.fail is not None else bar.warn
    share = case.limit(limit, gpu) * bar.allowance
    floor = share * bar.of
    text = f"at least {floor:.4g} {unit}: {share:.0%} of the {bar.of:.4g} that {bar.what}"
    return Expected(text, ">=", round(floor, 2), unit, case.limit_source(limit, gpu))
