"""nvlink.links: is every NVLink up that should be, and at full speed?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from gpudoctor.checks.core.case import Case, Limit, once_a_case
from gpudoctor.checks.core.driver_messages import events_not_judged
from gpudoctor.checks.core.each_gpu import in_virtual_machine, untrusted
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import (
    WRONG,
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    Status,
    fail,
    jointly,
    ok,
    skip,
    unknown,
    warn,
)
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, of_gpu, of_pair
from gpudoctor.checks.nvlink.link_state import links_up, not_judged, real_links, wired_directly
from gpudoctor.facts.model.gpu import Gpu, NvLink
from gpudoctor.facts.model.links import ALL_INACTIVE
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.profiles.profile import GpuModel, NvlinkSpec, majority
from gpudoctor.statements.xids import LINK_CODES
from gpudoctor.text.grouped import grouped

_BRIDGE_LINKS = Limit(
    4, "links", "an NVLink bridge of an A100, A30 or H100 card joins four (product briefs)", name="bridge_links"
)
_SPEED_SHARE = Limit(
    0.9,
    "of the nominal line rate",
    "nvidia-smi rounds and versions differ by a few percent (ours)",
    name="speed_share",
    status="fail",
)
_ADVICE = (
    Advice("See the links' own words:", "nvidia-smi nvlink --status"),
    Advice("Look for Xid 74, 144 to 150 and SXid lines:", "sudo dmesg | grep -iE 'xid|nvlink'"),
    "Drain the node and reset the GPUs or reboot; links that stay down need a hardware case.",
)


@check(
    "nvlink.links",
    title="Every NVLink that should be up is up, at full speed",
    impact="slow-collectives",
    limits=(_BRIDGE_LINKS, _SPEED_SHARE),
    events=("nvlink",),
    explains=(
        "nvlink.links",  # a GPU without a link explains what its peers lack: see `_by_shared_end`
        "nvlink.topology",
        "nvlink.errors",
        "collective.bandwidth",
        "collective.pairs",
        "link.peer",
        "train.scaling",
        Explains(("gpu.xid",), found=LINK_CODES),
    ),
)
def links(case: Case) -> Iterator[Finding]:
    """Compare the number of each GPU's links that are up with the model's number, else with the peers'."""
    usual = majority(speed for gpu in case.gpus for link in real_links(gpu) if (speed := _speed(link)) is not None)
    findings = [_judged(case, gpu, usual) for gpu in case.gpus]
    judged = [gpu for gpu, f in zip(case.gpus, findings, strict=True) if f.status in (Status.PASS, *WRONG)]
    if dead := _all_dead(findings):  # what they share is broken, not each of them
        yield jointly(dead, Found(f"no NVLink is up on any of {len(dead)} GPUs", 0, "links"))
        findings = [f for f in findings if f not in dead]
    yield from _by_shared_end(case, findings)
    if not judged and any(isinstance(gpu.nvlinks, Missing) for gpu in case.gpus):
        yield from events_not_judged(case, ("nvlink",), findings[0].reason or "")
    all_up = all(links_up(gpu) == len(real_links(gpu)) for gpu in judged)
    if judged and all_up and all(f.status in (Status.PASS, Status.SKIP) for f in findings):
        up = sum(map(links_up, judged))
        yield ok(NODE, Found(f"{up} of {up} links up", up, "links"))


def _all_dead(findings: Sequence[Finding]) -> list[Finding]:
    """Those of several GPUs none of whose links is up, and should be, if that is so of all that are judged."""
    judged = [f for f in findings if f.status in (Status.PASS, *WRONG)]
    dead = [f for f in judged if f.status in WRONG and f.found is not None and f.found.value == 0]
    return dead if len(dead) == len(judged) > 1 else []


def _by_shared_end(case: Case, findings: Sequence[Finding]) -> Iterator[Finding]:
    """The findings; if every link that is down ends at one GPU, those of the other GPUs are about the pair with it.

    A link has two ends. So if one GPU has as many links down as all others together, each of theirs ends there.
    """
    down = {f.subject.gpu: f for f in findings if f.status in WRONG}
    counts = {gpu.index: len(real_links(gpu)) - links_up(gpu) for gpu in case.gpus if isinstance(gpu.nvlinks, tuple)}
    total = sum(counts.values())
    shared = next((index for index, count in counts.items() if count * 2 == total), None)
    known_ends = len(counts) == len(case.gpus) == len(case.node.gpus) and wired_directly(case)
    if shared not in down or len(down) < 3 or not known_ends or {i for i, n in counts.items() if n} != set(down):
        yield from findings
        return
    for finding in findings:
        index = finding.subject.gpu
        if finding.status not in WRONG or index is None or index == shared or shared is None:
            yield finding
        else:
            count = counts[index]
            found = Found(f"{count} link{'s' * (count > 1)} between them down", count, "links")
            yield replace(finding, subject=of_pair(index, shared), found=found, expected=None, likely=None, advice=())


def _judged(case: Case, gpu: Gpu, usual: float | None) -> Finding:
    if gpu.nvlinks == ALL_INACTIVE and (model := case.model_of(gpu)) and model.nvlink and model.nvlink.kind == "switch":
        # others have links only behind a bridge: without one all are inactive, and nothing is wrong
        down = replace(gpu, nvlinks=tuple(NvLink(number, state="inactive") for number in range(model.nvlink.links)))
        all_inactive = Evidence("nvmlDeviceGetNvLinkState", ALL_INACTIVE.reason)
        return replace(not_judged(case, down) or _links_of(case, down, usual), evidence=(all_inactive,))
    return _none_shown(case, gpu) or not_judged(case, gpu) or _links_of(case, gpu, usual)


def _none_shown(case: Case, gpu: Gpu) -> Finding | None:
    """A failure if the driver shows no links for a GPU made for NVSwitches, while links of a peer are up; else None."""
    model, none = case.model_of(gpu), gpu.nvlinks
    absent = not none if not isinstance(none, Missing) else none.kind == "unsupported"
    if not absent or untrusted(gpu) or known(gpu.settings.mig_enabled) or model is None or _uncertain(model):
        return None
    peers = [peer for peer in case.gpus if known(peer.name) == known(gpu.name) and links_up(peer)]
    if model.nvlink is None or model.nvlink.kind != "switch" or not peers:
        return None
    return _down(case, gpu, model.nvlink.links, _all_links(model.nvlink))


def _all_links(spec: NvlinkSpec, which: str = ": all that the model has") -> Expected:
    return Expected(f"{spec.links} of {spec.links}{which}", "==", spec.links, "links", "profile")


def _as_on(peers: str, links: int) -> Expected:
    return Expected(f"{links}, as on {peers}", ">=", links, "links", "peers")


def _links_of(case: Case, gpu: Gpu, usual: float | None) -> Finding:
    model = case.model_of(gpu)
    spec = model.nvlink if model is not None else None
    if spec is None:
        finding = _by_peers(case, gpu)
    elif spec.kind == "bridge":
        finding = _bridged(case, gpu, spec)
    elif spec.kind == "mesh" and case.profile.node is None:
        # part of a mesh (a cloud instance with four of eight GPUs) has unconnected links by design
        finding = _by_peers(case, gpu)
    else:
        finding = _all_of(case, gpu, spec)
    if finding.status is Status.FAIL and model is not None and _uncertain(model):
        finding = warn(of_gpu(gpu), finding.found or "", finding.expected, *finding.evidence, likely=finding.likely)
    return finding if finding.status is not Status.PASS else _speed_of(case, gpu, spec, usual) or finding


def _all_of(case: Case, gpu: Gpu, spec: NvlinkSpec) -> Finding:
    up, subject = links_up(gpu), of_gpu(gpu)
    expected = _all_links(spec)
    if up >= spec.links:
        return ok(subject, _count(gpu, spec.links), expected)
    siblings = [peer for peer in case.gpus if peer.index != gpu.index]
    if up == 0 and not any(links_up(peer) for peer in siblings):
        # without the PCI bus it is not known that this GPU is the only one
        if not siblings and isinstance(case.node.pci.nvidia_devices, Missing) and spec.kind == "switch":
            likely = "its links failed to train; or this machine, or virtual machine, has this GPU alone"
            return _too_few(warn, gpu, spec.links, expected, likely)
        if not siblings:
            return skip(subject, "the only GPU here: none of its links has another end")
        if in_virtual_machine(case.node, [gpu]):
            likely = "the virtual machine was given these GPUs without their NVSwitches"
            ask = "Ask the provider for an instance with NVLink: collectives run over PCIe here."
            return _too_few(warn, gpu, spec.links, expected, likely, ask)
    return _down(case, gpu, spec.links, expected)


def _bridged(case: Case, gpu: Gpu, spec: NvlinkSpec) -> Finding:
    up, subject = links_up(gpu), of_gpu(gpu)
    whole = min(int(case.limit(_BRIDGE_LINKS, gpu)), spec.links)
    partners = _partners(case, gpu)
    joined = max((links_up(partner) for partner in partners), default=0)
    expected = _all_links(spec, " over its bridge")
    if up == 0 and joined == 0:
        return _without_bridge(case, gpu, spec)
    if up >= spec.links:
        return ok(subject, _count(gpu, spec.links), expected)
    if up < joined or up % whole:
        return _down(case, gpu, spec.links, expected)
    likely = f"only {up // whole} of {spec.links // whole} bridges sit on this pair"
    look = "Power off and look: every slot for a bridge should carry one, seated flat on both cards."
    return _too_few(warn, gpu, spec.links, expected, likely, look)


def _without_bridge(case: Case, gpu: Gpu, spec: NvlinkSpec) -> Finding:
    same = [g for g in case.gpus if known(g.name) == known(gpu.name)]
    bare = [g for g in same if real_links(g) and links_up(g) == 0]
    found = Found("no NVLink bridge: no link is up", 0, "links")
    requested = case.profile.node
    if requested is not None and requested.nvlink_topology == "pairs":
        bridged = Expected(f"{spec.links}: {requested.name} is bridged", "==", spec.links, "links", "profile")
        return _down(case, gpu, spec.links, bridged)
    events = known(case.node.kernel_log.events) or ()
    if logged := next((event for event in events if event.kind == "nvlink"), None):
        return warn(
            of_gpu(gpu),
            found,
            Expected("links up, or none there: the kernel log speaks of NVLinks that failed", source="kernel log"),
            Evidence("kernel log", logged.text),
            *_down_evidence(gpu),
            likely="a bridge is there, but its links failed to train",
            advice=_ADVICE,
        )
    if len(bare) == len(same) or len(bare) < 2:
        return ok(of_gpu(gpu), found, Expected("a bridge is optional on this model", source="profile"))
    expected = Expected("a bridge like the other pairs have", source="peers")
    likely = "this pair was never bridged, or its bridge came loose"
    look = "Power off and look whether the bridge of this pair is there and seated on both cards."
    return warn(of_gpu(gpu), found, expected, *_down_evidence(gpu), likely=likely, advice=(look,))


def _partners(case: Case, gpu: Gpu) -> list[Gpu]:
    """The GPUs connected to this one: by the links' remote ends, by the matrix, or because there is only one other."""
    others = [peer for peer in case.gpus if peer.index != gpu.index and known(peer.name) == known(gpu.name)]
    ends = {known(link.remote_bus_id) for link in known(gpu.nvlinks) or ()}
    named = [
        peer
        for peer in others
        if peer.bus_id in ends or any(known(link.remote_bus_id) == gpu.bus_id for link in known(peer.nvlinks) or ())
    ]
    bonded = {
        pair.b if pair.a == gpu.index else pair.a
        for pair in case.pairs
        if gpu.index in (pair.a, pair.b) and (known(pair.nvlinks) or 0) > 0
    }
    found = [peer for peer in others if peer in named or peer.index in bonded]
    return found or (others if len(others) == 1 else [])


class _Peers(msgspec.Struct, frozen=True):
    """The GPUs of one model that have links: the links that are up on most of them and at most on one."""

    number: int
    usual: int | None
    most: int
    incomplete: int  # GPUs with a link that is down


@once_a_case
def _peers(case: Case) -> dict[str | None, _Peers]:
    linked = grouped((known(gpu.name), (links_up(gpu), len(links))) for gpu in case.gpus if (links := real_links(gpu)))
    return {
        name: _Peers(
            len(counts), majority(up for up, _ in counts), max(counts)[0], sum(up != links for up, links in counts)
        )
        for name, counts in linked.items()
    }


def _by_peers(case: Case, gpu: Gpu) -> Finding:
    up, subject, has = links_up(gpu), of_gpu(gpu), len(real_links(gpu))
    same = _peers(case)[known(gpu.name)]
    usual, most = same.usual, same.most
    found = _count(gpu, has)
    if up == 0 and most and same.incomplete == 1:
        return _down(case, gpu, has, _as_on("every other GPU here", most))
    if not most and known(gpu.name) is None:
        # by design on cards without a bridge, a fault on every GPU made for NVSwitches
        return unknown(subject, f"no link is up, and the model is not known: {found.text}", *_down_evidence(gpu))
    if same.number == 1 and 0 < up < has:
        why = "whether all should be is not known: no other GPU of its model to compare with"
        return unknown(subject, f"{found.text}; {why}", *_down_evidence(gpu), advice=_ADVICE)
    if usual is None or up >= usual:
        if up == most or usual is not None:
            return ok(subject, found, Expected("as many as the peers of the same model", source="peers"))
        likely = "a link is down, or this machine wires its GPUs unevenly: no profile knows it"
        return _too_few(warn, gpu, has, _as_on("another GPU of this model", most), likely)
    return _down(case, gpu, has, _as_on("most GPUs here", usual))


def _down(case: Case, gpu: Gpu, of: int, expected: Expected) -> Finding:
    disabled = sum(known(link.state) == "disabled" for link in real_links(gpu))
    likely = (
        "links are switched off by a driver setting (NVreg_NvLinkDisable) or by the fabric manager"
        if disabled
        else "the links failed to train: NVLink hardware, a bridge or baseboard contact"
        + (", or a stopped fabric manager" if _may_have_switch(case, gpu) else "")
    )
    return _too_few(fail, gpu, of, expected, likely)


def _too_few(
    judge: Callable[..., Finding], gpu: Gpu, of: int, expected: Expected, likely: str, *advice: Advice | str
) -> Finding:
    """The finding on a GPU of whose `of` links some are down."""
    evidence = _down_evidence(gpu)
    return judge(of_gpu(gpu), _count(gpu, of), expected, *evidence, likely=likely, advice=advice or _ADVICE)


def _may_have_switch(case: Case, gpu: Gpu) -> bool:
    """Whether an NVSwitch may be at the other end of the links: only that needs a fabric manager."""
    if wired_directly(case):
        return False
    model = case.model_of(gpu)
    return model is None or model.nvlink is None or model.nvlink.kind == "switch"


def _speed_of(case: Case, gpu: Gpu, spec: NvlinkSpec | None, usual: float | None) -> Finding | None:
    """A finding if an active link is slower than nominal, or than most links here (`usual`, GB/s); else None."""
    speeds = {link.link: speed for link in real_links(gpu) if (speed := _speed(link)) is not None}
    nominal = spec.raw_gb_s if spec is not None else None
    reference, share = max(usual or 0.0, nominal or 0.0), case.limit(_SPEED_SHARE, gpu)
    slow = {link: speed for link, speed in speeds.items() if speed < share * reference}
    if not slow:
        return None
    # if a whole node is below nominal, the nominal number is more likely wrong than every link slow
    slowest, least, source = min(slow.values()), round(share * reference, 3), "profile" if nominal else "peers"
    return (fail if usual is not None and slowest < share * usual else warn)(
        of_gpu(gpu),
        Found(f"{len(slow)} of {len(speeds)} links slow: {slowest} GB/s", slowest, "GB/s"),
        Expected(f"{reference} GB/s a link", ">=", least, "GB/s", source),
        *(Evidence(f"NVLink {link} speed", f"{speed} GB/s") for link, speed in slow.items()),
        likely="the link trained at a lower rate: signal quality of the bridge, baseboard or switch",
        advice=_ADVICE,
    )


def _speed(link: NvLink) -> float | None:
    return known(link.speed_gb_s) if known(link.state) == "active" else None


def _count(gpu: Gpu, of: int) -> Found:
    return Found(f"{links_up(gpu)} of {of} links up", links_up(gpu), "links")


def _down_evidence(gpu: Gpu) -> tuple[Evidence, ...]:
    by_state = grouped((link.state, link.link) for link in real_links(gpu) if not link.is_up)
    return tuple(
        Evidence("nvmlDeviceGetNvLinkState", f"{state}: link{'s' * (len(at) > 1)} {', '.join(map(str, at))}")
        for state, at in by_state.items()
    )


def _uncertain(model: GpuModel) -> bool:
    return "nvlink" in model.uncertain or "nvlink.links" in model.uncertain
