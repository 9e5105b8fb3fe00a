"""link.host: are pinned copies between host memory and each GPU as fast as the PCIe link allows?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import in_virtual_machine
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.measured.peer_ranks import Yardstick, against_others, by_model, other_processes
from gpudoctor.checks.measured.probe_outcome import judged_outcome, without_figures
from gpudoctor.checks.measured.ranks import rank_gpu, rank_subject
from gpudoctor.checks.measured.under_load import highest_of, load_of
from gpudoctor.checks.pcie.link_state import describe, hidden_bridges, names_of
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.links import link_gb_s
from gpudoctor.facts.model.measured_hardware import HostLink
from gpudoctor.facts.model.missing import Missing, known

HOST = "link.host"
_UNPROVEN_GENERATION = 6  # no published figures for copies on Gen6: never more than a warn


_WARN_SHARE = Limit(
    0.72, "of the link's rate", "healthy links: 0.73 (Gen3) to 0.88 (Gen5), Azure, nvbandwidth", name="warn_share"
)
_FAIL_SHARE = Limit(0.60, "of the link's rate", "below all floors of AzNHC, which are 0.60 to 0.76", name="fail_share")
_VM_FAIL_SHARE = Limit(
    0.30,
    "of the link's rate",
    "gpudoctor's own choice: vIOMMU and unknown NUMA may cost half in a guest",
    name="vm_fail_share",
)
_PEER_WARN_SHARE = Limit(
    0.85, "of the others' median", "gpudoctor's own choice: alike links differ by 5 %", name="peer_warn_share"
)
_PEER_FAIL_SHARE = Limit(0.60, "of the others' median", "gpudoctor's own choice", name="peer_fail_share")


@check(
    HOST,
    impact="slow-host-link",
    needs_gpu=False,
    limits=(_WARN_SHARE, _FAIL_SHARE, _VM_FAIL_SHARE, _PEER_WARN_SHARE, _PEER_FAIL_SHARE),
    explains=("link.peer", Explains(("link.*", "compute.*", "train.*", "burn.*"), anywhere=True, gaps=True)),
)
def host(case: Case) -> Iterator[Finding]:
    """Judge the slower direction of each GPU, copying alone, by its link and by its peers on equal links."""
    links = case.measurements.host_links
    yield from judged_outcome(case, "link", "copies between host and GPU", measured=bool(links))
    if not links:
        return
    for link in links:
        yield _judged(case, link, links)
    yield from without_figures(case, "link", (link.rank for link in links), "copies between host and GPU")


def _judged(case: Case, link: HostLink, links: Sequence[HostLink]) -> Finding:
    subject, gpu = rank_subject(case, link.rank), rank_gpu(case, link.rank)
    text = f"host to GPU {link.h2d_alone_gb_s:.3g} GB/s, GPU to host {link.d2h_alone_gb_s:.3g} GB/s"
    evidence = _evidence(case, link, gpu)
    if link.wrong_bytes:
        return fail(
            subject,
            Found(f"{link.wrong_bytes} bytes came back changed from the GPU", link.wrong_bytes, "bytes"),
            "every byte as it was sent",
            *evidence,
            likely="the PCIe link, the GPU's memory or the host's memory corrupts data",
            advice=(
                Advice("Look for link and memory errors.", "gpudoctor check pcie.errors gpu.ecc gpu.xid"),
                Advice("Take the GPU out of training until it is found: reseat it, then swap it."),
            ),
        )
    if gpu is None:
        return unknown(subject, f"{text}, not judged: it is not known which GPU this was", *evidence)
    if known(gpu.settings.confidential_compute) is True:
        return skip(subject, f"{text}, not judged: confidential computing encrypts every copy")
    in_use = _link_in_use(case, gpu, link)
    bars = _bars(case, link, links, gpu, in_use)
    lower = _lower_generation(case, gpu, in_use, links)
    found = Found(text, round(_slower(link), 2), "GB/s")
    bad = [(bar, kind) for bar in bars if (kind := bar.verdict(case, gpu)) is not None]
    if (bad or lower) and (others := other_processes(case, link.rank)):
        return unknown(subject, f"{text}: slow, but {others}: too disturbed to judge", *evidence)
    if bad:
        bar, kind = min(bad, key=lambda one: (one[1] != "fail", one[0].share))
        expected, likely = bar.expected(case, gpu, kind, "GB/s"), _likely(case, link, gpu)
        judge = fail if kind == "fail" else warn
        return judge(subject, found, expected, *evidence, likely=likely, advice=_steps(gpu))
    if lower is not None:
        # if the visible bridges are not the real ones, the slot's reported capability is not either
        judge = fail if lower.startswith("the others") and hidden_bridges(case, gpu) is None else warn
        named = describe(*in_use) if in_use else "PCIe"
        return judge(subject, Found(f"{named} under load ({text})"), lower, *evidence, advice=_steps(gpu))
    if not bars:
        why = "neither the link nor a GPU of the same model beside it says what to expect"
        return skip(subject, f"{text}, not judged: {why}")
    return ok(subject, found, bars[0].expected(case, gpu, "warn", "GB/s"), *evidence)


def _slower(link: HostLink) -> float:
    return min(link.h2d_alone_gb_s, link.d2h_alone_gb_s)


def _link_in_use(case: Case, gpu: Gpu, link: HostLink) -> tuple[int, int] | None:
    """Generation and lanes while it copied; None if no source reports them, or the measured rate exceeds their maximum.

    Samples may have caught the link only while idle, when it is slowed down.
    """
    if gpu.on_c2c:
        return None
    load = load_of(case, gpu, "link")
    sampled, lanes = (highest_of(load, n) if load else None for n in ("pcie_generation", "pcie_width"))
    width = known(gpu.pcie.width)
    fastest = max(link.h2d_alone_gb_s, link.d2h_alone_gb_s)
    tries = ((sampled, lanes or width), (sampled, width), (gpu.pcie.generation_reachable, width))
    for generation, count in tries:
        if generation and count:
            carries = link_gb_s(int(generation), int(count))
            if carries is not None and fastest <= carries:
                return int(generation), int(count)
    return None


def _bars(
    case: Case, link: HostLink, links: Sequence[HostLink], gpu: Gpu, in_use: tuple[int, int] | None
) -> list[Yardstick]:
    bars = []
    # from another socket, the copy also measures the link between the sockets
    may_fail, slower = link.near_cpus is not False, _slower(link)
    if in_use and (carries := link_gb_s(*in_use)):
        fails = _fails_below(case, gpu) if may_fail and in_use[0] < _UNPROVEN_GENERATION else None
        what = f"GB/s that {describe(*in_use)} carries"
        bars.append(Yardstick(slower / carries, carries, _WARN_SHARE, fails, what))
    group = next(ranks for ranks in by_model(case, [other.rank for other in links]) if link.rank in ranks)
    alike = {
        other.rank: _slower(other)
        for other in links
        if other.rank in group
        and (peer := rank_gpu(case, other.rank)) is not None
        and _link_in_use(case, peer, other) == in_use
    }
    if (ratio := against_others(link.rank, alike)) is not None:
        fails, what = _PEER_FAIL_SHARE if may_fail else None, "GB/s that the others of this model reach"
        bars.append(Yardstick(ratio, slower / ratio, _PEER_WARN_SHARE, fails, what))
    return bars


def _fails_below(case: Case, gpu: Gpu) -> Limit:
    """The limit for a fail: in a virtual machine there is more than the link between guest memory and GPU."""
    return _VM_FAIL_SHARE if in_virtual_machine(case.node, [gpu]) else _FAIL_SHARE


def _lower_generation(case: Case, gpu: Gpu, in_use: tuple[int, int] | None, links: Sequence[HostLink]) -> str | None:
    """The link speed that was not reached under load, as text; starts with "the others" if those did reach it."""
    reachable = gpu.pcie.generation_reachable
    if in_use is None or reachable is None or in_use[0] >= reachable:
        return None
    others = [
        peer_link[0]
        for other in links
        if (peer := rank_gpu(case, other.rank)) is not None
        and peer.name == gpu.name
        and peer.index != gpu.index
        and (peer_link := _link_in_use(case, peer, other)) is not None
    ]
    if others and min(others) >= reachable:
        return f"the others run at Gen{min(others)} under load, and so can GPU and slot here"
    return f"Gen{reachable}, which GPU and slot can do"


def _evidence(case: Case, link: HostLink, gpu: Gpu | None) -> tuple[Evidence, ...]:
    mib = link.size_bytes / 2**20
    shown = [Evidence("alone", f"{link.h2d_alone_gb_s:.2f} GB/s in, {link.d2h_alone_gb_s:.2f} GB/s out ({mib:g} MiB)")]
    inward, outward = link.h2d_together_gb_s, link.d2h_together_gb_s
    if not isinstance(inward, Missing) and not isinstance(outward, Missing):
        sharing = _sharing(case, gpu) if gpu else ""
        shown.append(Evidence("all GPUs at once", f"{inward:.2f} GB/s in, {outward:.2f} GB/s out{sharing}"))
    if link.near_cpus is False:
        shown.append(Evidence("CPUs", "none of those near the GPU may be used: copied from another NUMA node"))
    load = load_of(case, gpu, "link") if gpu else None
    if load is not None and load.counters.get("pcie_replays"):
        shown.append(Evidence("PCIe replays while it copied", str(load.counters["pcie_replays"])))
    return tuple(shown)


def _sharing(case: Case, gpu: Gpu) -> str:
    """Text naming GPUs that share a bridge, and so the path to the host: all at once must be slower."""
    bridges = {hop.bus_id for hop in (known(gpu.pcie.path) or ())[1:]}
    others = [
        other
        for other in case.gpus
        if other.index != gpu.index and bridges & {hop.bus_id for hop in (known(other.pcie.path) or ())[1:]}
    ]
    return f"; shares its way to the host with {names_of(others)}" if others else ""


def _likely(case: Case, link: HostLink, gpu: Gpu) -> str:
    if link.near_cpus is False:
        return "the copies crossed from another CPU socket: this job may not use CPUs near the GPU"
    load = load_of(case, gpu, "link")
    if load is not None and load.counters.get("pcie_replays"):
        return "the link repeats packets: a bad contact, riser or cable"
    return "a bad contact, riser or slot; host memory with few channels; or the IOMMU in the way"


def _steps(gpu: Gpu) -> tuple[Advice, ...]:
    return (
        Advice("Look at the link and everything above it.", "gpudoctor check pcie topology -v"),
        Advice("See what was negotiated.", f"sudo {gpu.lspci} | grep -e LnkCap -e LnkSta"),
        Advice("Reseat the card or its riser; swap it with another and see whether the slowness moves."),
    )
