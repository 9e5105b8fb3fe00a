"""pcie.link-width: does every GPU use all of its PCIe lanes?"""

from __future__ import annotations

from typing import NamedTuple

from gpudoctor.checks.core.case import Case, once_a_case
from gpudoctor.checks.core.each_gpu import by_model, each_gpu
from gpudoctor.checks.core.explains import OVER_PCIE
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.pcie.link_state import describe, hidden_bridges, names_of, rates_gb_s, visible_slot
from gpudoctor.facts.model.gpu import Gpu, PcieHop
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.profiles.profile import majority
from gpudoctor.text.grouped import grouped

_WIDTH = "nvmlDeviceGetCurrPcieLinkWidth"
_OWN_MAX = "the GPU's own maximum"
_RESEAT = (
    "Drain the node, power it off for 30 seconds (a reboot does not retrain every link) and start it.",
    Advice("Check again:", "gpudoctor check pcie"),
    "Still narrow: reseat the GPU and its riser or cable, try another slot, then open a hardware case.",
)
_MOVE = (
    Advice("See which slot each GPU sits in:", "sudo lspci -tv"),
    "Move it to a slot with more lanes, or look in the BIOS for a slot setting (bifurcation) that splits them.",
)


@check(
    "pcie.link-width",
    title="Every GPU uses all of its PCIe lanes",
    impact="slow-host-link",
    explains=OVER_PCIE,
)
@each_gpu
def link_width(case: Case, gpu: Gpu) -> Finding:
    """Compare each link's lanes with the GPU's and the slot's maximum; if the slot is hidden, with its peers."""
    width, own_max = gpu.pcie.width, _own_max(gpu)
    if isinstance(width, Missing):
        return unread(of_gpu(gpu), "PCIe link width", width)
    if isinstance(own_max, Missing):
        return _by_lspci(gpu, width) or unread(of_gpu(gpu), "PCIe link width that the GPU can do", own_max)
    if min(width, own_max) <= 0:
        return unknown(of_gpu(gpu), f"PCIe link width: the answer, {width} of {own_max} lanes, is none")
    wider = _widest_peers(case, gpu, width)
    # by design all of them are narrow; a single narrow one among wider ones is not
    if width < own_max and gpu.on_c2c and not wider:
        return skip(of_gpu(gpu), f"x{width} of x{own_max}: the host link of this GPU is NVLink-C2C, not PCIe")
    slot = visible_slot(case, gpu)
    slot_max = known(slot.max_width) if slot else None
    evidence = _width_evidence(gpu, width, own_max, slot)
    if width >= own_max or (slot_max is not None and width >= slot_max):
        return _at_its_maximum(gpu, width, own_max, wider, evidence)
    return _too_narrow(case, gpu, width, own_max, slot_max, evidence)


def _too_narrow(
    case: Case, gpu: Gpu, width: int, own_max: int, slot_max: int | None, evidence: tuple[Evidence, ...]
) -> Finding:
    """The finding for a link below the maximum of the GPU and, as far as it is known, of the slot."""
    peers = _widths(case).get(gpu.name, _NO_PEERS)
    if slot_max is not None and slot_max < own_max:
        lanes, limit, source = slot_max, "the slot's maximum", "slot maximum"
    elif slot_max is not None:
        lanes, limit, source = own_max, _OWN_MAX, "gpu maximum"
    elif peers.usual is not None and peers.usual > width:
        lanes, source = min(own_max, peers.usual), "peers"
        limit = _OWN_MAX if lanes == own_max else ""
    else:
        return _cannot_tell_why(case, gpu, width, own_max, evidence)
    reasons = (limit, _running_at(lanes, peers))
    return fail(
        of_gpu(gpu),
        _found(gpu, width),
        _expected(gpu, lanes, ", and ".join(filter(None, reasons)), source),
        *evidence,
        _cost(_generation(gpu), width, lanes),
        likely=f"the link trained at x{width}: a bad contact, riser, cable or retimer",
        advice=_RESEAT,
    )


def _at_its_maximum(gpu: Gpu, width: int, own_max: int, wider: list[Gpu], evidence: tuple[Evidence, ...]) -> Finding:
    """The finding for a link at the maximum of GPU and slot; a slot narrower than its peers' still costs speed."""
    if wider:
        most = known(wider[0].pcie.width) or 0
        return warn(
            of_gpu(gpu),
            _found(gpu, width),
            _expected(gpu, most, f"what {names_of(wider)} run at", "peers"),
            *evidence,
            likely="this GPU sits in a slot with fewer lanes than its peers have",
            advice=_MOVE,
        )
    text, source = ("the slot's maximum", "slot maximum") if width < own_max else (_OWN_MAX, "gpu maximum")
    return ok(of_gpu(gpu), _found(gpu, width), _expected(gpu, width, text, source))


def _cannot_tell_why(case: Case, gpu: Gpu, width: int, own_max: int, evidence: tuple[Evidence, ...]) -> Finding:
    hidden = hidden_bridges(case, gpu)
    return warn(
        of_gpu(gpu),
        _found(gpu, width),
        _expected(gpu, own_max, _OWN_MAX, "gpu maximum"),
        Evidence("slot", f"cannot be seen from here: {hidden or 'its width is not known'}"),
        *evidence,
        _cost(_generation(gpu), width, own_max),
        likely="the slot is wired with fewer lanes, or the link trained too narrow: from here the two look alike",
        advice=(
            "Look up how many lanes the slot (or the cloud instance) gives this GPU.",
            Advice("On the host itself, compare link and slot:", f"sudo {gpu.lspci} | grep -i lnk"),
        ),
    )


def _by_lspci(gpu: Gpu, width: int) -> Finding | None:
    """A finding by what lspci reports about a link below the GPU's maximum; None if it does not report that."""
    path = known(gpu.pcie.path)
    if not path or not isinstance(path[0].width_downgraded, bool) or gpu.on_c2c:
        return None
    subject, evidence = of_gpu(gpu), Evidence("lspci LnkSta", f"Width x{width}")
    if not path[0].width_downgraded:
        can = Expected("what the GPU can do, as lspci says")
        return ok(subject, Found(f"PCIe x{width}", width, "lanes"), can, evidence)
    return warn(
        subject,
        Found(f"PCIe x{width}, and the GPU can do more", width, "lanes"),
        Expected("all lanes of the GPU", source="lspci: downgraded"),
        evidence,
        likely="the slot is wired with fewer lanes, or the link trained too narrow: from here the two look alike",
        advice=(
            "Look up how many lanes the slot gives; two cards on a desktop board often share 16.",
            Advice("Compare link and slot:", f"sudo {gpu.lspci} | grep -i lnk"),
        ),
    )


# What is known of the link, and of those of its peers.


def _own_max(gpu: Gpu) -> int | Missing:
    """The width that the GPU alone can do: the larger of NVML's maximum, which may include the slot, and the bus's."""
    path = known(gpu.pcie.path)
    on_bus = known(path[0].max_width) if path else None
    by_driver = known(gpu.pcie.width_max)
    if on_bus is None and by_driver is None:
        return gpu.pcie.width_max if isinstance(gpu.pcie.width_max, Missing) else Missing("not known")
    return max(n for n in (on_bus, by_driver) if n is not None)


def _generation(gpu: Gpu) -> int | None:
    return gpu.pcie.generation_reachable or known(gpu.pcie.generation)


class _ModelWidths(NamedTuple):
    """How wide the links of a model's GPUs are: all of them, most of them, and which GPUs run at a width."""

    gpus: int
    widest: int
    usual: int | None
    at: dict[int, list[Gpu]]


_NO_PEERS = _ModelWidths(1, 0, None, {})


@once_a_case
def _widths(case: Case) -> dict[str | Missing, _ModelWidths]:
    found = {}
    for name, gpus in by_model(case).items():
        at = grouped((known(gpu.pcie.width) or 0, gpu) for gpu in gpus)
        found[name] = _ModelWidths(len(gpus), max(at), majority(known(gpu.pcie.width) for gpu in gpus), at)
    return found


def _widest_peers(case: Case, gpu: Gpu, width: int) -> list[Gpu]:
    """The GPUs of this model with the most lanes; empty if this one is among them."""
    peers = _widths(case).get(gpu.name, _NO_PEERS)
    return peers.at[peers.widest] if width < peers.widest else []


def _running_at(lanes: int, peers: _ModelWidths) -> str:
    """Which peers run at this width, for the end of a sentence; empty if there are none."""
    at = peers.at.get(lanes, ())
    if not at:
        return ""
    if len(at) != peers.gpus - 1:
        return f"what {names_of(at)} run{'s' * (len(at) == 1)} at"
    return "what the other GPU runs at" if len(at) == 1 else f"what the other {len(at)} GPUs run at"


# How it is said.


def _found(gpu: Gpu, width: int) -> Found:
    return Found(describe(_generation(gpu), width), width, "lanes")


def _expected(gpu: Gpu, lanes: int, text: str, source: str) -> Expected:
    return Expected(f"{describe(_generation(gpu), lanes)}: {text}", ">=", lanes, "lanes", source)


def _width_evidence(gpu: Gpu, width: int, own_max: int, slot: PcieHop | None) -> tuple[Evidence, ...]:
    readings = [Evidence(_WIDTH, f"{width} (maximum {own_max})")]
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


def _cost(generation: int | None, width: int, expected: int) -> Evidence:
    rates = rates_gb_s((generation, width), (generation, expected))
    if rates is None:
        return Evidence("what it costs", f"{1 - width / expected:.0%} of the bandwidth is lost")
    has, could = rates
    return Evidence("what it costs", f"{has} GB/s each way instead of {could}: {1 - has / could:.0%} is lost")
