"""collective.bandwidth: is all_reduce as fast as the node's profile, else its slowest link, lets it be?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import log2

import msgspec

from gpudoctor.checks.collective.correct import CORRECT
from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.gpu_use import use_of_gpu
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.measured.probe_outcome import not_judged
from gpudoctor.checks.measured.ranks import gpus_of, on_gpus, rank_count, ranks_in_words
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.links import lanes_gb_s
from gpudoctor.facts.model.measurements import Collective
from gpudoctor.facts.model.missing import known
from gpudoctor.text.units import short_size

# below this size latency dominates, not the links
SMALLEST_JUDGED_BYTES = 16 * 2**20
_WARN_SHARE = Limit(
    0.90, "of the expected", "SuperBench's rule, loosened for a single run of one node", name="warn_share"
)
_FAIL_SHARE = Limit(
    0.75, "of the expected", "gpudoctor's own choice: a lost link or lost in-switch sums", name="fail_share"
)
_NVLINK_SHARE = Limit(
    0.60,
    "of the slowest NVLink path",
    "gpudoctor's own choice, without a profile's figure",
    name="nvlink_share",
    status="warn",
)
_PCIE_P2P_SHARE = Limit(
    0.30,
    "of the slowest PCIe link",
    "gpudoctor's own; 20 of 32 GB/s seen on A100 PCIe",
    name="pcie_p2p_share",
    status="warn",
)
_HOST_MEMORY_SHARE = Limit(
    0.06,
    "of the slowest PCIe link",
    "gpudoctor's own; 5 GB/s seen on 8 RTX 4090",
    name="host_memory_share",
    status="warn",
)
LIMITS = (_WARN_SHARE, _FAIL_SHARE, _NVLINK_SHARE, _PCIE_P2P_SHARE, _HOST_MEMORY_SHARE)


@check(
    "collective.bandwidth",
    needs_gpu=False,
    limits=LIMITS,
)
def bandwidth(case: Case) -> Iterator[Finding]:
    """Judge the largest all_reduce against the profile, else against the slowest link on its way."""
    done = [c for c in case.measurements.collectives if c.op == "all_reduce"]
    what = "all_reduce at larger sizes" if done else "all_reduce bandwidth"
    yield from not_judged(case, "collective", what, CORRECT, measured=bool(done))
    if not done:
        return
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
    if others := other_work(case):
        return unknown(NODE, f"{text}, below {floor:.3g} GB/s; but {others}: too disturbed to judge", *evidence)
    if any(known(gpu.settings.confidential_compute) is True for gpu in case.gpus):
        return skip(NODE, f"{text}: confidential computing encrypts the traffic, and no figure is known for it")
    worse = bound.fail_ratio is not None and done.busbw_gb_s < bound.expected_gb_s * bound.fail_ratio
    return (fail if worse else warn)(
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
    gpus = gpus_of(case, range(rank_count(case)))
    pids = [f"pid {p.pid} on GPU {gpu.index}" for gpu in gpus for p in use_of_gpu(gpu).others]
    return f"{', '.join(pids[:3])} used the GPUs too" if pids else None


class Bound(msgspec.Struct, frozen=True):
    """An expected busbw, and the ratios below which a result is a warn or a fail (None: never a fail)."""

    expected_gb_s: float
    warn_ratio: float
    fail_ratio: float | None
    text: str
    source: str


def expected_busbw(case: Case, ranks: int, size_bytes: int) -> Bound | str:
    """The bound for this number of ranks and message size; a str is the reason why there is none."""
    if size_bytes < SMALLEST_JUDGED_BYTES:
        return "the message is too small to show the links"
    gpus = gpus_of(case, range(ranks))
    if len(gpus) < ranks:
        return "it is not known which GPUs took part"
    if any(known(gpu.settings.mig_enabled) is True for gpu in gpus):
        return "no figure is known for MIG instances"
    return _by_profile(case, ranks, size_bytes) or _by_links(case, gpus)


def _by_profile(case: Case, ranks: int, size_bytes: int) -> Bound | None:
    node = case.profile.node
    row = next((r for r in node.all_reduce if r.ranks == ranks), None) if node else None
    if node is None or row is None:
        return None
    share = size_factor(node.size_factor, size_bytes)
    if share is None:
        # without a curve, only the largest messages are near the figure, and how near is not known
        if size_bytes < 2**30:
            return None
        share = 1.0
    warn_ratio, fail_ratio = (
        case.limit(limit) if of_node is None or case.limit_source(limit) == "configuration" else of_node
        for limit, of_node in ((_WARN_SHARE, node.warn_below), (_FAIL_SHARE, node.fail_below))
    )
    weak = row.uncertain or not node.size_factor
    return Bound(
        row.busbw_gb_s * share,
        warn_ratio,
        None if weak else fail_ratio,
        f"{warn_ratio:.0%} of {row.busbw_gb_s * share:.3g} GB/s, what {node.title} reaches with {ranks} GPUs",
        f"profile {node.name}: {row.source}",
    )


def size_factor(factors: dict[str, float], size_bytes: int) -> float | None:
    """The share of the large-message figure at this size, interpolated between the table's sizes on a log scale.

    None below the smallest size of the table. `factors` maps MiB to share.
    """
    points = sorted((float(mib), share) for mib, share in factors.items())
    mib = size_bytes / 2**20
    if not points or mib < points[0][0]:
        return None
    for (low, low_share), (high, high_share) in pairwise(points):
        if mib <= high:
            return low_share + (high_share - low_share) * (log2(mib) - log2(low)) / (log2(high) - log2(low))
    return points[-1][1]


def _by_links(case: Case, gpus: list[Gpu]) -> Bound | str:
    """A loose bound that can only warn: the slowest link in the ring."""
    inside = {gpu.index for gpu in gpus}
    pairs = [p for p in case.pairs if {p.a, p.b} <= inside]
    complete = len(pairs) == len(inside) * (len(inside) - 1) // 2
    if complete and pairs and all(known(p.nvlinks) for p in pairs) and (nvlink := _nvlink_gb_s(case, gpus)):
        return _loose(case, _NVLINK_SHARE, nvlink, "the GPU with the fewest NVLinks")
    links = [_pcie_gb_s(gpu) for gpu in gpus]
    slowest = min((gb_s for gb_s in links if gb_s is not None), default=None)
    if slowest is None or None in links:
        return "neither a profile nor the links say what to expect"
    if complete and all(known(p.p2p_read) == "OK" and known(p.path) in ("PIX", "PXB") for p in pairs):
        return _loose(case, _PCIE_P2P_SHARE, slowest, "the slowest PCIe link, peer to peer")
    # NCCL itself goes through host memory if the GPUs do not share a switch
    return _loose(case, _HOST_MEMORY_SHARE, slowest, "the slowest PCIe link, by way of host memory")


def _loose(case: Case, limit: Limit, link_gb_s: float, what: str) -> Bound:
    ratio = case.limit(limit)
    text = f"{ratio:.0%} of {link_gb_s:.3g} GB/s, {what}; no profile has a figure, so this is a loose bound"
    return Bound(link_gb_s, ratio, None, text, f"the links of these GPUs; {case.limit_source(limit)}")


def _nvlink_gb_s(case: Case, gpus: list[Gpu]) -> float | None:
    """The rate of the weakest GPU's NVLinks in one direction; None if no link or no rate is known."""
    spec = case.profile.gpu.nvlink if case.profile.gpu else None
    active = [sum(link.state == "active" for link in (known(gpu.nvlinks) or ())) for gpu in gpus]
    return min(active, default=0) * (spec.effective_gb_s or spec.gb_s_per_link * 0.8) if spec else None


def _pcie_gb_s(gpu: Gpu) -> float | None:
    """The rate of the GPU's link in one direction, with the generation it reaches under load and its current width."""
    return lanes_gb_s(known(gpu.pcie.generation_max), known(gpu.pcie.width))
