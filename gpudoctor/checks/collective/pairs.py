"""collective.pairs: NCCL between every two GPUs, compared with the other pairs that are connected the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gpudoctor.checks.collective.correct import CORRECT
from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu, of_pair
from gpudoctor.checks.measured.peer_pairs import Joined, joined_pairs
from gpudoctor.checks.measured.peer_ranks import Yardstick, other_processes
from gpudoctor.checks.measured.probe_outcome import not_judged, problems_of
from gpudoctor.checks.measured.ranks import gpus_of, on_gpus, ranks_in_words
from gpudoctor.checks.measured.under_load import median
from gpudoctor.facts.model.measured_hardware import PeerLink
from gpudoctor.facts.model.measurements import PairBandwidth
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.text.units import counted, short_size

_WHAT = "send and receive between pairs"
_LEAST_TO_COMPARE = 3  # if only two differ, it is open which one is abnormal
_NOISE_DEVIATIONS = 3.0  # an excess time below so many median deviations of the pair's own time is noise
_STEPS = (
    Advice("Look at the links between the two.", "gpudoctor check nvlink pcie link.peer -v"),
    Advice("See which paths NCCL takes.", "NCCL_DEBUG=INFO gpudoctor check collective.pairs --level full"),
)
_WARN_SHARE = Limit(
    0.90, "of the median of the other pairs", "gpudoctor's own choice: healthy ones differ by 3 %", name="warn_share"
)
_FAIL_SHARE = Limit(
    0.75, "of the median of the other pairs", "gpudoctor's own choice: a quarter of the links", name="fail_share"
)


@check(
    "collective.pairs",
    needs_gpu=False,
    limits=(_WARN_SHARE, _FAIL_SHARE),
)
def pairs(case: Case) -> Iterator[Finding]:
    """Compare pairs of one kind (NVLinks or PCIe path, models); report slow pairs, or the GPU that they share."""
    measured = case.measurements.pairs
    yield from not_judged(case, "collective", _WHAT, CORRECT, measured=bool(measured))
    if not measured:
        return
    launch = case.measurements.launch
    count = launch.world_size if launch else len({rank for pair in measured for rank in (pair.a, pair.b)})
    who, every = ranks_in_words(case, count), count * (count - 1) // 2
    if not on_gpus(case):
        yield skip(NODE, f"{who}: {_span([p.busbw_gb_s for p in measured])}, not judged")
        return
    if len(measured) < every and not problems_of(case, "collective"):
        yield skip(NODE, f"{who}: {every - len(measured)} of {every} pairs were not measured, the time for it was up")
    found = _joined(case, measured)
    if len(found) < len(measured):
        yield unknown(NODE, f"{_WHAT}: of some ranks it is not known which GPU they had")
    right = [pair for pair in found if not pair.measured.wrong_ranks]  # collective.correct reports the others
    for kind in dict.fromkeys(pair.joined.alike for pair in right):
        yield from _alike(case, [pair for pair in right if pair.joined.alike == kind])


class _Pair(msgspec.Struct, frozen=True):
    """A measured pair and its connection.

    `direct`: certainly not through the host. `usual_gb_s`: what the others of its kind reach; 0: not computed.
    """

    measured: PairBandwidth
    joined: Joined
    direct: bool
    usual_gb_s: float = 0.0

    @property
    def gb_s(self) -> float:
        return self.measured.busbw_gb_s

    @property
    def noisy(self) -> bool:
        """Whether its excess time over the others is within its own scatter."""
        usual_us = self.measured.size_bytes / self.usual_gb_s / 1e3
        return self.measured.time_us - usual_us < _NOISE_DEVIATIONS * self.measured.time_us_mad


def _joined(case: Case, measured: Sequence[PairBandwidth]) -> list[_Pair]:
    found = []
    for pair in measured:
        p2p = _p2p(case, pair)
        for joined in joined_pairs(case, [PeerLink(pair.a, pair.b, pair.size_bytes, pair.busbw_gb_s, p2p=p2p)]):
            direct = joined.direct and (joined.nvlinks > 0 or p2p is True)
            found.append(_Pair(pair, joined, direct))
    return found


def _p2p(case: Case, pair: PairBandwidth) -> bool | Missing:
    """Whether the two reach each other without the host, by CUDA in the link probe, else by the driver's facts."""
    for link in case.measurements.peer_links:
        if {link.source, link.target} == {pair.a, pair.b}:
            return link.p2p
    ends = {gpu.index for gpu in gpus_of(case, (pair.a, pair.b))}
    word = next((known(shown.p2p_read) for shown in case.pairs if {shown.a, shown.b} == ends), None)
    return Missing("not shown") if word is None else word == "OK"


def _alike(case: Case, members: Sequence[_Pair]) -> Iterator[Finding]:
    kind = members[0].joined.kind
    text = f"{_span([pair.gb_s for pair in members])} over {kind}"
    indices = {index for pair in members for index in pair.joined.gpus}
    gpus = [gpu for gpu in case.node.gpus if gpu.index in indices]
    if any(known(gpu.settings.mig_enabled) is True for gpu in gpus):
        yield skip(NODE, f"{text}, not judged: no figure is known for MIG instances")
        return
    if any(known(gpu.settings.confidential_compute) is True for gpu in gpus):
        yield skip(NODE, f"{text}, not judged: confidential computing encrypts the traffic")
        return
    if len(members) < _LEAST_TO_COMPARE:
        yield skip(NODE, f"{text}, not judged: too few pairs of this kind to compare")
        return
    slow = []
    for pair in members:
        usual = median(other.gb_s for other in members if other is not pair) or 0.0
        if pair.gb_s < usual * case.limit(_WARN_SHARE):
            slow.append(msgspec.structs.replace(pair, usual_gb_s=usual))
    if not slow:
        share = case.limit(_WARN_SHARE)
        expected = Expected(f"each at least {share:.0%} of the others", source=case.limit_source(_WARN_SHARE))
        yield ok(NODE, Found(text, round(min(pair.gb_s for pair in members), 2), "GB/s"), expected)
    for subject, outlier in _culprits(case, slow):
        yield _told(case, subject, outlier)


def _culprits(case: Case, slow: Sequence[_Pair]) -> list[tuple[Subject, list[_Pair]]]:
    """The one GPU that several slow pairs share, if there is one; else each pair separately."""
    shared = set.intersection(*(set(pair.joined.gpus) for pair in slow)) if len(slow) > 1 else set()
    gpu = next((gpu for gpu in case.node.gpus if {gpu.index} == shared), None)
    return [(of_gpu(gpu), list(slow))] if gpu else [(of_pair(*pair.joined.gpus), [pair]) for pair in slow]


def _told(case: Case, subject: Subject, outliers: Sequence[_Pair]) -> Finding:
    worst = min(outliers, key=lambda pair: pair.gb_s / pair.usual_gb_s)
    text = f"{worst.gb_s:.3g} GB/s each way over {worst.joined.kind}"
    if len(outliers) > 1:
        partners = sorted({i for pair in outliers for i in pair.joined.gpus} - {subject.gpu})
        text = f"slow to and from GPU {', '.join(str(i) for i in partners)}: {text} at worst"
    evidence = [
        Evidence(f"sendrecv of ranks {p.a} and {p.b}", f"{short_size(p.size_bytes)}: {p.busbw_gb_s:.3g} GB/s each way")
        for p in (pair.measured for pair in outliers)
    ]
    if others := other_processes(case, *(rank for p in outliers for rank in (p.measured.a, p.measured.b))):
        return unknown(subject, f"{text}; but {others}: too disturbed to judge", *evidence)
    if all(pair.noisy for pair in outliers):
        return unknown(subject, f"{text}; but its own time scatters as much: too noisy to judge", *evidence)
    # through host memory, pairs of one kind may differ because of the board's layout
    bad = [p for p in outliers if p.direct and p.gb_s < p.usual_gb_s * case.limit(_FAIL_SHARE) and not p.noisy]
    share, what = worst.gb_s / worst.usual_gb_s, f"GB/s of the other pairs over {worst.joined.kind}"
    bar = Yardstick(share, worst.usual_gb_s, _WARN_SHARE, _FAIL_SHARE, what)
    return (fail if bad else warn)(
        subject,
        Found(text, round(worst.gb_s, 2), "GB/s"),
        bar.expected(case, None, "fail" if bad else "warn", "GB/s"),
        *evidence,
        likely="NVLinks of this path are down or retry"
        if worst.joined.nvlinks
        else "a narrow or bad PCIe link of one of them, or traffic that goes up to the CPU (ACS, IOMMU)",
        advice=_STEPS,
    )


def _span(rates: Sequence[float]) -> str:
    """Text for the rates: "1 pair at 3.2 GB/s each way", "28 pairs at 230 to 242 GB/s each way"."""
    figures = f"{min(rates):.3g}" if len(rates) == 1 else f"{min(rates):.3g} to {max(rates):.3g}"
    return f"{counted(len(rates), 'pair')} at {figures} GB/s each way"
