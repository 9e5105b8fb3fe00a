"""The GPU's own PCIe link: its lanes and its generation."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import (
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    fail,
    of_gpu,
    ok,
    skip,
    unknown,
    unread,
    warn,
)
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.trust import untrusted
from gpudoctor.checks.pcie.link_state import (
    describe,
    generation_reachable,
    hidden_bridges,
    idling,
    names_of,
    on_c2c,
    slot_above,
)
from gpudoctor.facts.model.gpu import Gpu, PcieHop
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.pcie_generations import generation_of, link_gb_s
from gpudoctor.profiles.peers import majority

WIDTH = "nvmlDeviceGetCurrPcieLinkWidth"
GENERATION = "nvmlDeviceGetCurrPcieLinkGeneration"


@check(
    "pcie.link-width",
    title="Every GPU uses all of its PCIe lanes",
    impact="slow-host-link",
    explains=(
        "pcie.balance",
        "collective.bandwidth",
        "collective.pairs",
        "link.*",
        "train.balance",
        "train.scaling",
    ),
)
def link_width(case: Case) -> Iterator[Finding]:
    """Judge each link's lanes by the GPU's and the slot's maximum; where the slot is hidden, by its peers."""
    for gpu in case.gpus:
        yield _width_of(case, gpu)


def _width_of(case: Case, gpu: Gpu) -> Finding:
    subject, link = of_gpu(gpu), gpu.pcie
    if reason := untrusted(gpu):
        return unknown(subject, reason)
    if isinstance(link.width, Missing):
        return unread(subject, "PCIe link width", link.width)
    own_max = _own_max(gpu)
    if isinstance(own_max, Missing):
        return unread(subject, "PCIe link width that the GPU can do", own_max)
    if min(link.width, own_max) <= 0:
        return unknown(subject, f"PCIe link width: the answer, {link.width} of {own_max} lanes, is none")
    width, generation = link.width, generation_reachable(gpu) or known(link.generation)
    found = Found(describe(generation, width), width, "lanes")
    wider = [peer for peer in _peers(case, gpu) if (known(peer.pcie.width) or 0) > width]
    # by design all of them are narrow; one among wider ones is not
    if width < own_max and on_c2c(gpu) and not wider:
        return skip(subject, f"x{width} of x{own_max}: the host link of this GPU is NVLink-C2C, not PCIe")
    hidden = hidden_bridges(case, gpu)
    slot = slot_above(gpu) if hidden is None else None
    slot_max = known(slot.max_width) if slot else None
    evidence = _width_evidence(gpu, width, own_max, slot)

    if width >= own_max or (slot_max is not None and slot_max < own_max and width >= slot_max):
        limit = "the slot's maximum" if width < own_max else "the GPU's own maximum"
        if wider and width < max(known(peer.pcie.width) or 0 for peer in wider):
            return warn(
                subject,
                found,
                _expected(gpu, max(known(p.pcie.width) or 0 for p in wider), f"what {names_of(wider)} run at", "peers"),
                *evidence,
                likely="this GPU sits in a slot with fewer lanes than its peers have",
                advice=_MOVE,
            )
        return ok(subject, found, _expected(gpu, width, limit, "slot maximum" if "slot" in limit else "gpu maximum"))

    peer_width = majority(known(g.pcie.width) for g in (gpu, *_peers(case, gpu)))
    if slot_max is not None:
        wanted = min(own_max, slot_max)
        words = "the GPU's own maximum" if wanted == own_max else "the slot's maximum"
        source = "gpu maximum" if wanted == own_max else "slot maximum"
    elif peer_width is not None and peer_width > width:
        wanted, words, source = min(own_max, peer_width), "", "peers"
        words = "the GPU's own maximum" if wanted == own_max else ""
    else:
        return warn(
            subject,
            found,
            _expected(gpu, own_max, "the GPU's own maximum", "gpu maximum"),
            Evidence("slot", f"cannot be seen from here: {hidden or 'its width is not known'}"),
            *evidence,
            *_cost(generation, width, own_max),
            likely="the slot is wired with fewer lanes, or the link trained too narrow: from here the two look alike",
            advice=(
                "Look up how many lanes the slot (or the cloud instance) gives this GPU.",
                Advice("On the host itself, compare link and slot:", f"sudo lspci -vvs {gpu.bus_id} | grep -i lnk"),
            ),
        )
    at_wanted = [peer for peer in _peers(case, gpu) if known(peer.pcie.width) == wanted]
    if at_wanted:
        others = "the other GPU runs" if len(at_wanted) == 1 else f"the other {len(at_wanted)} GPUs run"
        if len(at_wanted) != len(_peers(case, gpu)):
            others = f"{names_of(at_wanted)} run" + ("s" if len(at_wanted) == 1 else "")
        words = f"{words}, and what {others} at" if words else f"what {others} at"
    return fail(
        subject,
        found,
        _expected(gpu, wanted, words, source),
        *evidence,
        *_cost(generation, width, wanted),
        likely=f"the link trained at x{width}: a bad contact, riser, cable or retimer",
        advice=_RESEAT,
    )


def _own_max(gpu: Gpu) -> int | Missing:
    """What the GPU alone can do: the larger of what NVML and the bus say, since NVML's may include the slot."""
    path = known(gpu.pcie.path)
    on_bus = known(path[0].max_width) if path else None
    by_driver = known(gpu.pcie.width_max)
    if on_bus is None and by_driver is None:
        return gpu.pcie.width_max if isinstance(gpu.pcie.width_max, Missing) else Missing("not known")
    return max(n for n in (on_bus, by_driver) if n is not None)


def _peers(case: Case, gpu: Gpu) -> list[Gpu]:
    name = known(gpu.name)
    return [
        peer
        for peer in case.gpus
        if peer.index != gpu.index and name is not None and known(peer.name) == name and not untrusted(peer)
    ]


def _expected(gpu: Gpu, lanes: int, words: str, source: str) -> Expected:
    generation = generation_reachable(gpu) or known(gpu.pcie.generation)
    return Expected(f"{describe(generation, lanes)}: {words}", ">=", lanes, "lanes", source)


def _width_evidence(gpu: Gpu, width: int, own_max: int, slot: PcieHop | None) -> tuple[Evidence, ...]:
    readings = [Evidence(WIDTH, f"{width} (maximum {own_max})")]
    path = known(gpu.pcie.path) or ()
    for hop in path[:1] if slot is None else (path[0], slot):
        now, most = known(hop.width), known(hop.max_width)
        if now is not None or most is not None:
            place = f"/sys/bus/pci/devices/{hop.bus_id}/current_link_width"
            readings.append(Evidence(place, f"{now if now is not None else '?'}, max_link_width = {most}"))
    replays = known(gpu.pcie.replays)
    if replays:
        readings.append(Evidence("nvmlDeviceGetPcieReplayCounter", f"{replays} since driver load"))
    return tuple(readings)


def _cost(generation: int | None, width: int, wanted: int) -> tuple[Evidence, ...]:
    has, could = (link_gb_s(generation, width), link_gb_s(generation, wanted)) if generation else (None, None)
    if has is None or could is None:
        return (Evidence("what it costs", f"{1 - width / wanted:.0%} of the bandwidth is lost"),)
    return (Evidence("what it costs", f"{has} GB/s each way instead of {could}: {1 - has / could:.0%} is lost"),)


_RESEAT = (
    "Drain the node, power it off for 30 seconds (a reboot does not retrain every link) and start it.",
    Advice("Check again:", "gpudoctor check pcie"),
    "Still narrow: reseat the GPU and its riser or cable, try another slot, then open a hardware case.",
)
_MOVE = (
    Advice("See which slot each GPU sits in:", "sudo lspci -tv"),
    "Move it to a slot with more lanes, or look in the BIOS for a slot setting (bifurcation) that splits them.",
)


_BUSY_PCT = Limit(10, "percent", "below it a desktop's redraws look the same as an idle GPU (ours)", name="busy_pct")


@check(
    "pcie.link-speed",
    title="Every busy GPU runs its PCIe link at full generation",
    impact="slow-host-link",
    limits=(_BUSY_PCT,),
    explains=(
        "pcie.balance",
        "collective.bandwidth",
        "collective.pairs",
        "link.*",
        "train.balance",
        "train.scaling",
    ),
)
def link_speed(case: Case) -> Iterator[Finding]:
    """Judge each link's generation, but only where the link is not idling or already at its maximum."""
    for gpu in case.gpus:
        yield _speed_of(case, gpu)


def _speed_of(case: Case, gpu: Gpu) -> Finding:
    subject, link = of_gpu(gpu), gpu.pcie
    if reason := untrusted(gpu):
        return unknown(subject, reason)
    if isinstance(link.generation, Missing):
        return unread(subject, "PCIe generation", link.generation)
    now, most = link.generation, generation_reachable(gpu)
    if min(now, now if most is None else most) <= 0:
        return unknown(subject, f"PCIe generation: the answer, {now} of {most}, is none")
    device = known(link.device_generation_max)
    if most is None and device is not None and now >= device:
        most = device
    if most is None:
        if isinstance(link.generation_max, Missing) and link.generation_max.kind == "failed":
            return unread(subject, "PCIe generation that GPU and slot can do", link.generation_max)
        return skip(subject, f"Gen{now}: what GPU and slot can do together is not known")
    found = Found(f"PCIe Gen{now}", now, "generation")
    expected = Expected(f"PCIe Gen{most}: what GPU and slot can do together", ">=", most, "generation", "slot maximum")
    if now >= most:
        return ok(subject, found, expected)
    if on_c2c(gpu) and not any((known(peer.pcie.generation) or 0) > now for peer in _peers(case, gpu)):
        return skip(subject, f"Gen{now}: the host link of this GPU is NVLink-C2C, not PCIe")
    idle = idling(gpu, case.limit(_BUSY_PCT, gpu))
    if idle is None:
        return skip(subject, f"Gen{now} of Gen{most}: nothing here tells whether the link is idling")
    if idle:
        return skip(subject, f"the link is idling (Gen{now} of Gen{most}): judged under load")
    lanes = known(link.width) or 16
    has, could = link_gb_s(now, lanes), link_gb_s(most, lanes)
    evidence = [Evidence(GENERATION, f"{now} (maximum {most})"), *_busy_evidence(gpu)]
    if has is not None and could is not None:
        evidence.append(Evidence("what it costs", f"{has} GB/s each way instead of {could}"))
    certain = hidden_bridges(case, gpu) is None and (known(gpu.utilization.gpu_pct) or 0) > 0
    judge = fail if certain else warn
    return judge(
        subject,
        found,
        expected,
        *evidence,
        likely="the link fell back to a slower generation (signal quality, riser, retimer) or the BIOS holds it there",
        advice=(
            Advice("See what the link is asked for and does:", f"sudo lspci -vvs {gpu.bus_id} | grep -i lnk"),
            "Set the slot to Auto or its full generation in the BIOS; take a riser or cable out of the way.",
            "It comes back after a cold boot: reseat the GPU, then open a hardware case.",
        ),
    )


def _busy_evidence(gpu: Gpu) -> list[Evidence]:
    readings = []
    state, busy = known(gpu.clocks.performance_state), known(gpu.utilization.gpu_pct)
    if state is not None:
        readings.append(Evidence("nvmlDeviceGetPerformanceState", f"P{state}"))
    if busy is not None:
        readings.append(Evidence("nvmlDeviceGetUtilizationRates", f"{busy} %"))
    path = known(gpu.pcie.path)
    speed = known(path[0].speed_gt_s) if path else None
    if path and speed is not None:
        place = f"/sys/bus/pci/devices/{path[0].bus_id}/current_link_speed"
        readings.append(Evidence(place, f"{speed:g} GT/s (Gen{generation_of(speed)})"))
    return readings
