"""collective.correct: are sums over all ranks exactly right?"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, fail, ok, skip
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.measured.probe_outcome import judged_outcome, problems_of
from gpudoctor.checks.measured.ranks import on_gpus, rank_count, rank_subject, ranks_in_words
from gpudoctor.text.units import listed, short_size

# nccl-tests' names
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv")
CORRECT = "collective.correct"
_SHOWN = 8  # of many wrong results


@check(
    CORRECT,
    impact="wrong-results",
    needs_gpu=False,
    explains=(
        Explains(("collective.bandwidth", "train.sync", "train.scaling"), anywhere=True),
        Explains(("collective.*", "link.*", "compute.*", "train.*", "burn.*"), anywhere=True, gaps=True),
        Explains(("strategy.*",), anywhere=True, after=("compute.exact",)),
    ),
)
def correct(case: Case) -> Iterator[Finding]:
    """Fail every rank whose result is wrong or whose part is missing, and every hung or dead rank."""
    done = case.measurements.collectives
    yield from judged_outcome(case, "collective", "collectives", measured=bool(done))
    if not done:
        return
    wrong = [_Wrong(f"{c.op} {short_size(c.size_bytes)}", c.wrong_ranks, c.missing_ranks) for c in done]
    for pair in case.measurements.pairs:
        what = f"sendrecv of ranks {pair.a} and {pair.b} {short_size(pair.size_bytes)}"
        wrong.append(_Wrong(what, pair.wrong_ranks))
    wrong = [each for each in wrong if each.wrong_ranks or each.missing_ranks]
    # a missing part makes every sum wrong: blame only the rank that did not contribute
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
    span = short_size(sizes[0]) if len(sizes) == 1 else f"{short_size(sizes[0])} to {short_size(sizes[-1])}"
    yield ok(NODE, f"{ops} of {span} exactly right on {who}", Expected("0 wrong elements", "==", 0))


class _Wrong(msgspec.Struct, frozen=True):
    """One measurement with wrong results: the ranks that got them, and those whose part is missing."""

    text: str
    wrong_ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...] = ()


def _wrong(case: Case, rank: int, wrong: list[_Wrong]) -> Finding:
    left_out = [each.text for each in wrong if rank in each.missing_ranks]
    bad = [each.text for each in wrong if rank in each.wrong_ranks]
    parts = []
    if left_out:
        parts.append(f"its part was missing from {listed(left_out, _SHOWN)}")
    if bad:
        parts.append(f"it got a wrong result of {listed(bad, _SHOWN)}")
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
