"""link.peer: do copies between every two GPUs arrive intact, and how fast are they?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu, of_pair
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.link.host import HOST
from gpudoctor.checks.measured.peer_pairs import Joined, joined_pairs
from gpudoctor.checks.measured.peer_ranks import Yardstick, other_processes
from gpudoctor.checks.measured.probe_outcome import absent, not_judged, problems_of
from gpudoctor.checks.measured.ranks import rank_gpu, ranks_in_words, ranks_of
from gpudoctor.checks.measured.under_load import median
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measured_hardware import PeerLink
from gpudoctor.facts.model.missing import known

_WHAT = "copies between GPUs"
_LEAST_TO_COMPARE = 3
_STEPS = (
    Advice("Look at the links between the GPUs, and at what stands in the way.", "gpudoctor check nvlink pcie -v"),
    Advice("See the matrix that the driver knows.", "nvidia-smi topo -m; nvidia-smi topo -p2p r"),
)
_NVLINK_WARN_SHARE = Limit(
    0.75, "of the line rate", "copies reach 0.80 to 0.92 of it; AzNHC's floors 0.74, 0.78", name="nvlink_warn_share"
)
_NVLINK_FAIL_SHARE = Limit(
    0.60, "of the line rate", "gpudoctor's own choice: below every published figure", name="nvlink_fail_share"
)
_CLASS_WARN_SHARE = Limit(
    0.90, "of the other pairs of its kind", "gpudoctor's own: such pairs differ by 3 %", name="class_warn_share"
)
_CLASS_FAIL_SHARE = Limit(
    0.75, "of the other pairs of its kind", "gpudoctor's own: a quarter of the links", name="class_fail_share"
)


@check(
    "link.peer",
    needs_gpu=False,
    limits=(_NVLINK_WARN_SHARE, _NVLINK_FAIL_SHARE, _CLASS_WARN_SHARE, _CLASS_FAIL_SHARE),
    explains=("collective.pairs", "collective.bandwidth"),
)
def peer(case: Case) -> Iterator[Finding]:
    """Fail wrong data and closed NVLink paths; judge rates by the NVLinks' line rate and by pairs of the same kind."""
    yield from not_judged(case, "link", _WHAT, HOST)
    links, broken = case.measurements.peer_links, problems_of(case, "link")
    if not broken or not links:
        yield from _not_measured(case, bool(broken))
    if not links:
        return
    count = _ranks(links)
    pairs = joined_pairs(case, links)
    if sum(len(pair.links) for pair in pairs) < len(links):
        yield unknown(NODE, f"{_WHAT}: of some ranks it is not known which GPU they had")
    bad = [pair for pair in pairs if pair.wrong_elements]
    for pair in bad:
        yield _wrong(pair)
    if not bad and pairs and not broken:
        text = f"{ranks_in_words(case, count)}: every byte of {len(links)} copies arrived right"
        yield ok(NODE, Found(text, 0, "wrong elements"))
    closed = [pair for pair in pairs if pair.nvlinks and pair.p2p_off and not _confidential(case, pair)]
    for pair in closed:
        yield _closed(pair)
    yield from _speeds(case, [pair for pair in pairs if pair not in closed and pair not in bad])


class _Slow(NamedTuple):
    """A pair below a limit, the yardstick with that limit, and the status."""

    pair: Joined
    bar: Yardstick
    kind: Literal["warn", "fail"]


def _ranks(links: Sequence[PeerLink]) -> int:
    return len({link.source for link in links} | {link.target for link in links})


def _not_measured(case: Case, broken: bool) -> Iterator[Finding]:
    """Why all or some directions were not measured; `broken`: a problem of the probe says that already."""
    links, launch = case.measurements.peer_links, case.measurements.launch
    why_not = case.measurements.not_run.get("peer")
    if links:
        ranks = launch.world_size if launch else _ranks(links)
        if len(links) < ranks * (ranks - 1):
            text = f"{len(links)} of {ranks * (ranks - 1)} directions were measured"
            yield unknown(NODE, text) if why_not is None else skip(NODE, f"{text}: {why_not.reason}")
    elif why_not is not None:
        yield unread(NODE, _WHAT, why_not)
    elif not broken:
        alone = launch is not None and launch.world_size == 1 and bool(case.measurements.host_links)
        yield skip(NODE, f"{_WHAT}: one GPU, there is no other") if alone else absent(case, "link", _WHAT)


def _confidential(case: Case, pair: Joined) -> bool:
    gpus = (gpu for gpu in case.node.gpus if gpu.index in pair.gpus)
    return any(known(gpu.settings.confidential_compute) is True for gpu in gpus)


def _wrong(pair: Joined) -> Finding:
    total, wrong = sum(link.size_bytes // 4 for link in pair.links), pair.wrong_elements
    return fail(
        of_pair(*pair.gpus),
        Found(f"{wrong} of {total} elements arrived changed ({pair.kind})", wrong, "elements"),
        "every element as it was sent",
        *_figures(pair),
        likely="the IOMMU or ACS redirects peer-to-peer writes, or a link or memory corrupts data",
        advice=(
            Advice("Look at what stands between them.", "gpudoctor check pcie.acs pcie.errors nvlink gpu.ecc"),
            Advice("Until it is found, take the node out of training: gradients would arrive wrong."),
        ),
    )


def _closed(pair: Joined) -> Finding:
    return fail(
        of_pair(*pair.gpus),
        Found(f"CUDA lets them not reach each other, though {pair.nvlinks} NVLinks join them", "P2P off"),
        "peer-to-peer over NVLink",
        *_figures(pair),
        likely="the fabric manager does not run, or a driver setting switches peer-to-peer off",
        advice=(
            Advice("Look at the fabric.", "gpudoctor check nvlink; systemctl status nvidia-fabricmanager"),
            *_STEPS,
        ),
    )


def _speeds(case: Case, pairs: Sequence[Joined]) -> Iterator[Finding]:
    for kind in dict.fromkeys(pair.alike for pair in pairs):
        members = [pair for pair in pairs if pair.alike == kind]
        rates = [pair.gb_s for pair in members]
        span = f"{min(rates):.3g}" if len(rates) == 1 else f"{min(rates):.3g} to {max(rates):.3g}"
        pairs_text = f"{len(members)} pair{'s' if len(members) > 1 else ''} over {members[0].kind}: {span} GB/s one way"
        if any(_confidential(case, pair) for pair in members):
            yield skip(NODE, f"{pairs_text}, not judged: confidential computing encrypts the traffic")
            continue
        judged = members[0].line_gb_s is not None or len(members) >= _LEAST_TO_COMPARE
        if not judged:
            yield skip(NODE, f"{pairs_text}, not judged: too few pairs of this kind to compare")
            continue
        slow = [found for pair in members if (found := _slow(case, pair, members)) is not None]
        if slow:
            yield from _told(case, slow, members)
        else:
            yield ok(NODE, Found(pairs_text, round(min(rates), 1), "GB/s"), _expectation(case, members))


def _slow(case: Case, pair: Joined, members: Sequence[Joined]) -> _Slow | None:
    bars = []
    if line := pair.line_gb_s:
        fails, what = _NVLINK_FAIL_SHARE if pair.certain else None, f"GB/s that their {pair.nvlinks} NVLinks carry"
        bars.append(Yardstick(pair.gb_s / line, line, _NVLINK_WARN_SHARE, fails, what))
    usual = median(other.gb_s for other in members if other is not pair)
    if usual and len(members) >= _LEAST_TO_COMPARE:
        # through the CPUs' own fabric, pairs of one kind may differ because of the board's layout
        fails, what = _CLASS_FAIL_SHARE if pair.direct else None, f"GB/s that the other pairs over {pair.kind} reach"
        bars.append(Yardstick(pair.gb_s / usual, usual, _CLASS_WARN_SHARE, fails, what))
    found = [_Slow(pair, bar, kind) for bar in bars if (kind := bar.verdict(case, None)) is not None]
    return min(found, key=lambda slow: slow.kind != "fail", default=None)


def _told(case: Case, slow: Sequence[_Slow], members: Sequence[Joined]) -> Iterator[Finding]:
    """One finding for each slow pair; or one for a GPU that is slow to every other, if all slow pairs contain it."""
    common = set.intersection(*(set(found.pair.gpus) for found in slow))
    for index in common if len(slow) > 1 else ():
        whole = sum(index in pair.gpus for pair in members) == len(slow)
        gpu = next((gpu for gpu in case.node.gpus if gpu.index == index), None)
        if whole and gpu is not None:
            worst = min(slow, key=lambda found: (found.kind != "fail", found.pair.gb_s))
            text = f"copies to and from all {len(slow)} others are slow: {worst.pair.gb_s:.3g} GB/s"
            yield _finding(case, of_gpu(gpu), worst, text, [e for found in slow for e in _figures(found.pair)], [gpu])
            return
    for found in slow:
        ends = [gpu for gpu in case.node.gpus if gpu.index in found.pair.gpus]
        text = f"{found.pair.gb_s:.3g} GB/s one way over {found.pair.kind}"
        yield _finding(case, of_pair(*found.pair.gpus), found, text, _figures(found.pair), ends)


def _finding(
    case: Case, subject: Subject, slow: _Slow, text: str, evidence: Sequence[Evidence], gpus: Sequence[Gpu]
) -> Finding:
    ranks = [rank for rank in ranks_of(case) if rank_gpu(case, rank) in gpus]
    if others := other_processes(case, *ranks):
        return unknown(subject, f"{text}: slow, but {others}: too disturbed to judge", *evidence)
    likely = (
        "an NVLink is down or retries, or a bridge sits badly"
        if slow.pair.nvlinks
        else "a narrow or bad PCIe link of one of them, or traffic that goes up to the CPU (ACS, IOMMU)"
    )
    found, expected = Found(text, round(slow.pair.gb_s, 2), "GB/s"), slow.bar.expected(case, None, slow.kind, "GB/s")
    judge = fail if slow.kind == "fail" else warn
    return judge(subject, found, expected, *evidence, likely=likely, advice=_STEPS)


def _expectation(case: Case, members: Sequence[Joined]) -> Expected:
    line = members[0].line_gb_s
    if line is None:
        share = case.limit(_CLASS_WARN_SHARE)
        return Expected(f"each at least {share:.0%} of the others", source=case.limit_source(_CLASS_WARN_SHARE))
    floor = line * case.limit(_NVLINK_WARN_SHARE)
    text = f"at least {floor:.3g} GB/s, of a line rate of {line:g} GB/s"
    return Expected(text, ">=", round(floor, 2), "GB/s", case.limit_source(_NVLINK_WARN_SHARE))


def _figures(pair: Joined) -> list[Evidence]:
    shown = []
    for link in pair.links:
        both = known(link.both_ways_gb_s)
        text = f"{link.gb_s:.2f} GB/s" + (f", both ways {both:.2f} GB/s" if both is not None else "")
        p2p = {True: ", P2P on", False: ", P2P off", None: ""}[known(link.p2p)]
        shown.append(Evidence(f"copy from rank {link.source} to rank {link.target}", text + p2p))
    return shown
