"""collective.bandwidth: is all_reduce as fast as it should be on this node?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.collective.correct import CORRECT, rank_count
from gpudoctor.checks.collective.expected_busbw import LIMITS, Bound, expected_busbw
from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.gpu_use import use_of_gpu
from gpudoctor.checks.core.probe_outcome import not_judged, not_measured, on_gpus, rank_gpu, ranks_in_words
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.facts.model.measurements import Collective
from gpudoctor.facts.model.missing import known
from gpudoctor.units import short_size


@check(
    "collective.bandwidth",
    title="all_reduce reaches the bandwidth that this kind of node has",
    level="standard",
    needs_gpu=False,
    limits=LIMITS,
)
def bandwidth(case: Case) -> Iterator[Finding]:
    """Judge the largest all_reduce against the profile, else against the slowest link on its way."""
    done = [c for c in case.measurements.collectives if c.op == "all_reduce"]
    if not done:
        yield from not_measured(case, "collective", "all_reduce bandwidth", CORRECT)
        return
    yield from not_judged(case, "collective", "all_reduce at larger sizes", CORRECT)
    largest = max(done, key=lambda c: c.size_bytes)
    who, size = ranks_in_words(case, rank_count(case)), short_size(largest.size_bytes)
    figure = f"all_reduce {size} at {largest.busbw_gb_s:.3g} GB/s busbw"
    if not on_gpus(case):
        yield skip(NODE, f"{who}: {figure}, not judged")
        return
    if rank_count(case) < 2:
        yield skip(NODE, f"{who}: one rank has nothing to exchange")
        return
    bound = expected_busbw(case, rank_count(case), largest.size_bytes)
    others = [c for c in case.measurements.collectives if c.op != "all_reduce"]
    evidence = tuple(
        Evidence("probe", f"{c.op} {short_size(c.size_bytes)}: {c.busbw_gb_s:.3g} GB/s busbw") for c in (*done, *others)
    )
    if isinstance(bound, str):
        yield skip(NODE, f"{who}: {figure}, not judged: {bound}")
        return
    yield _judged(case, largest, bound, f"{figure} on {who}", evidence)


def _judged(case: Case, done: Collective, bound: Bound, text: str, evidence: tuple[Evidence, ...]) -> Finding:
    found = Found(text, round(done.busbw_gb_s, 2), "GB/s")
    floor = bound.expected_gb_s * bound.warn_ratio
    expected = Expected(f"at least {floor:.3g} GB/s: {bound.text}", ">=", round(floor, 2), "GB/s", bound.source)
    if done.busbw_gb_s >= floor:
        return ok(NODE, found, expected, *evidence)
    others = other_work(case)
    if others:
        return unknown(NODE, f"{text}, below {floor:.3g} GB/s; but {others}: too disturbed to judge", *evidence)
    confidential = [g for g in case.gpus if known(g.settings.confidential_compute) is True]
    if confidential:
        return skip(NODE, f"{text}: confidential computing encrypts the traffic, and no figure is known for it")
    worse = bound.fail_ratio is not None and done.busbw_gb_s < bound.expected_gb_s * bound.fail_ratio
    judge = fail if worse else warn
    return judge(
        NODE,
        found,
        expected,
        *evidence,
        likely="a link that is down or narrow, in-switch sums that are off, or a setting that closes a path",
        advice=(
            Advice("Look at links and settings first.", "gpudoctor check nvlink pcie env.nccl -v"),
            Advice("See which paths NCCL takes.", "NCCL_DEBUG=INFO gpudoctor check collective"),
        ),
    )


def other_work(case: Case) -> str | None:
    """Text naming compute processes of others on the measured GPUs; None if there are none."""
    ranks = range(rank_count(case))
    measured = [gpu for rank in ranks if (gpu := rank_gpu(case, rank)) is not None]
    pids = [f"pid {p.pid} on GPU {gpu.index}" for gpu in measured for p in use_of_gpu(gpu).others]
    return f"{', '.join(pids[:3])} used the GPUs too" if pids else None
