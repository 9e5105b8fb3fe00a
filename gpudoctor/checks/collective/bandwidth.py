"""collective.*: sums over all ranks, whether they are right and how fast they come."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checks.collective.expected_busbw import LIMITS, Bound, expected_busbw
from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import (
    NODE,
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    fail,
    ok,
    skip,
    unknown,
    unread,
    warn,
)
from gpudoctor.checks.core.gpu_use import use_of_gpu
from gpudoctor.checks.core.probe_outcome import (
    absent,
    judged_problems,
    not_judged,
    on_gpus,
    problems_of,
    rank_gpu,
    rank_subject,
    ranks_in_words,
)
from gpudoctor.checks.core.registry import check
from gpudoctor.facts.model.measurements import Collective
from gpudoctor.facts.model.missing import known

# nccl-tests' names
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv")
CORRECT = "collective.correct"
BANDWIDTH = "collective.bandwidth"
_SHOWN = 8  # of many wrong results


class _Wrong(msgspec.Struct, frozen=True):
    """One measurement, by what went wrong in it."""

    what: str
    size_bytes: int
    wrong_ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.what} {size_text(self.size_bytes)}"


@check(
    CORRECT, title="Sums over all ranks are exactly right", impact="wrong-results", level="standard", needs_gpu=False
)
def correct(case: Case) -> Iterator[Finding]:
    """Fail every rank whose result is wrong or whose part is missing; a hung or dead rank too."""
    yield from judged_problems(case, "collective")
    done = case.measurements.collectives
    if not done:
        if not problems_of(case, "collective"):
            yield absent(case, "collective", "collectives")
        return
    wrong = [_Wrong(c.op, c.size_bytes, c.wrong_ranks, c.missing_ranks) for c in done]
    wrong += [
        _Wrong(f"sendrecv of ranks {p.a} and {p.b}", p.size_bytes, p.wrong_ranks) for p in case.measurements.pairs
    ]
    wrong = [each for each in wrong if each.wrong_ranks or each.missing_ranks]
    # a part that is missing makes every sum wrong: the rank that did not give it is the one to name
    culprits = {rank for each in wrong for rank in (each.missing_ranks or each.wrong_ranks)}
    for rank in sorted(culprits):
        yield _wrong(case, rank, wrong)
    if wrong or problems_of(case, "collective"):
        return
    count = rank_count(case)
    who = ranks_in_words(case, count)
    if count == 1:
        yield skip(NODE, f"{who}: one rank has nothing to sum with")
        return
    for op in OPERATIONS:
        missing = case.measurements.not_run.get(op)
        if missing is not None:
            yield unread(NODE, op, missing)
    sizes = sorted({c.size_bytes for c in done})
    ops = ", ".join(dict.fromkeys(c.op for c in done))
    span = size_text(sizes[0]) if len(sizes) == 1 else f"{size_text(sizes[0])} to {size_text(sizes[-1])}"
    yield ok(NODE, f"{ops} of {span} exactly right on {who}", Expected("0 wrong elements", "==", 0))


def rank_count(case: Case) -> int:
    """How many ranks took part."""
    return case.measurements.launch.world_size if case.measurements.launch else 0


def _wrong(case: Case, rank: int, wrong: list[_Wrong]) -> Finding:
    left_out = [each for each in wrong if rank in each.missing_ranks]
    bad = [each for each in wrong if rank in each.wrong_ranks]
    parts = []
    if left_out:
        parts.append(f"its part was missing from {_names(left_out)}")
    if bad:
        parts.append(f"it got a wrong result of {_names(bad)}")
    translated = case.node.pci.iommu == "translated"
    return fail(
        rank_subject(case, rank),
        "; ".join(parts),
        "the exact result on every rank",
        *(Evidence("probe", f"{each.text}: wrong on {each.wrong_ranks}") for each in wrong[:_SHOWN]),
        likely="the IOMMU or ACS redirects peer-to-peer writes"
        if translated
        else "a link or memory of this rank's GPU corrupts data"
        if on_gpus(case)
        else "faulty memory or CPU, or a broken build of torch",
        advice=(
            Advice("Run it again: a wrong result must never happen.", "gpudoctor check collective"),
            Advice("Look at links and memory of the GPU.", "gpudoctor check nvlink gpu.ecc gpu.xid pcie.acs"),
            Advice("Until it is found, take the node out of training."),
        ),
    )


def _names(wrong: list[_Wrong]) -> str:
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return ", ".join(each.text for each in wrong[:_SHOWN]) + more


def size_text(size_bytes: int) -> str:
    """A message size as people write it: "64 MiB", "1 KiB"."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes} B"


@check(
    BANDWIDTH,
    title="all_reduce reaches the bandwidth that this kind of node has",
    level="standard",
    needs_gpu=False,
    limits=LIMITS,
)
def bandwidth(case: Case) -> Iterator[Finding]:
    """Judge the largest all_reduce against the profile, else against the slowest link in the way."""
    done = [c for c in case.measurements.collectives if c.op == "all_reduce"]
    if not done:
        if problems_of(case, "collective"):
            yield from not_judged(case, "collective", "all_reduce bandwidth", CORRECT)
        else:
            yield absent(case, "collective", "all_reduce bandwidth")
        return
    yield from not_judged(case, "collective", "all_reduce at larger sizes", CORRECT)
    largest = max(done, key=lambda c: c.size_bytes)
    who, size = ranks_in_words(case, rank_count(case)), size_text(largest.size_bytes)
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
        Evidence("probe", f"{c.op} {size_text(c.size_bytes)}: {c.busbw_gb_s:.3g} GB/s busbw") for c in (*done, *others)
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
    others = strangers(case)
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


def strangers(case: Case) -> str | None:
    """Compute processes of others on the GPUs measured, in words."""
    ranks = range(rank_count(case))
    measured = [gpu for rank in ranks if (gpu := rank_gpu(case, rank)) is not None]
    pids = [f"pid {p.pid} on GPU {gpu.index}" for gpu in measured for p in use_of_gpu(gpu).others]
    return f"{', '.join(pids[:3])} used the GPUs too" if pids else None
