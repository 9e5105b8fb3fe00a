"""pcie.upstream: are the links above the GPUs, up to the root, at full width and speed?"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.driver_messages import log_lines
from gpudoctor.checks.core.each_gpu import untrusted
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.runner import NO_GPU
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.pcie.link_state import bridges_not_judged, describe, names_of, rates_gb_s
from gpudoctor.facts.model.driver import KernelEvent
from gpudoctor.facts.model.gpu import Gpu, PcieHop
from gpudoctor.facts.model.links import GT_S, generation_of
from gpudoctor.facts.model.missing import Missing, known


@check(
    "pcie.upstream",
    title="Every link above the GPUs, up to the root, is at full width and speed",
    impact="slow-host-link",
    needs_gpu=False,
    events=("pcie-bandwidth",),
    explains=("collective.bandwidth", "collective.pairs", "link.*"),
)
def upstream(case: Case) -> Iterator[Finding]:
    """Report the first bad hop above each GPU, once per bridge with all the GPUs behind it.

    For a kernel log alone: devices that the kernel reported at boot as limited by a slower link.
    """
    if not case.gpus:
        limits = [] if case.node.gpus else [e for e in known(case.node.kernel_log.events) or () if e.limit is not None]
        yield from _limited(limits)
        if not limits:
            yield skip(NODE, NO_GPU)
    bad: dict[str, tuple[Hop, list[Gpu]]] = {}
    rest: list[Gpu] = []
    for gpu in case.gpus:
        if reason := untrusted(gpu):
            yield unknown(of_gpu(gpu), reason)
        elif gpu.on_c2c:
            yield skip(of_gpu(gpu), "the host link of this GPU is NVLink-C2C, not PCIe")
        elif finding := bridges_not_judged(case, gpu):
            yield finding
        elif hop := _first_bad(gpu):
            bad.setdefault(hop.child.bus_id, (hop, []))[1].append(gpu)
        else:
            rest.append(gpu)
    for hop, behind in bad.values():
        yield _bad_hop(case, hop, behind, rest)
    for gpu in rest:
        yield _clean(gpu)


class Hop(msgspec.Struct, frozen=True):
    """A link above the GPU: its two ends, its state, and what both ends could do."""

    child: PcieHop
    parent: PcieHop
    width: int | None
    width_possible: int | None
    speed_gt_s: float | None
    speed_possible_gt_s: float | None

    @property
    def narrow(self) -> bool:
        return self.width is not None and self.width_possible is not None and self.width < self.width_possible

    @property
    def slow(self) -> bool:
        now, possible = self.speed_gt_s, self.speed_possible_gt_s
        return now is not None and possible is not None and now < possible


def links_above(gpu: Gpu) -> list[Hop]:
    """The links above the GPU's own, nearest first.

    The path alternates: two ends of a link, then the inside of a switch, then the next link.
    """
    path = known(gpu.pcie.path) or ()
    return [_hop(path[i], path[i + 1]) for i in range(2, len(path) - 1, 2)]


def _hop(child: PcieHop, parent: PcieHop) -> Hop:
    width, speed = known(child.width), known(child.speed_gt_s)
    widths = known(child.max_width), known(parent.max_width)
    speeds = known(child.max_speed_gt_s), known(parent.max_speed_gt_s)
    return Hop(
        child,
        parent,
        known(parent.width) if width is None else width,
        None if None in widths else min(n for n in widths if n is not None),
        known(parent.speed_gt_s) if speed is None else speed,
        None if None in speeds else min(n for n in speeds if n is not None),
    )


def _first_bad(gpu: Gpu) -> Hop | None:
    return next((hop for hop in links_above(gpu) if hop.narrow or (hop.slow and not _own_link_idles(gpu))), None)


def _own_link_idles(gpu: Gpu) -> bool:
    """Whether the GPU's link is below its maximum, so that links above may be idle too; at its maximum they are not."""
    now, most = known(gpu.pcie.generation), known(gpu.pcie.generation_max)
    return now is None or most is None or now < most


def _bad_hop(case: Case, hop: Hop, behind: list[Gpu], rest: list[Gpu]) -> Finding:
    now_generation = generation_of(hop.speed_gt_s) if hop.speed_gt_s else None
    full_generation = generation_of(hop.speed_possible_gt_s) if hop.speed_possible_gt_s else None
    lanes, full_lanes = hop.width or 0, hop.width_possible or hop.width or 0
    name = f"the link above {names_of(behind)}"
    what, unit = ("width", "lanes") if hop.narrow else ("speed", "GT/s")
    now, full = (lanes, hop.width_possible) if hop.narrow else (hop.speed_gt_s, hop.speed_possible_gt_s)
    evidence = [
        Evidence(f"/sys/bus/pci/devices/{end.bus_id}/current_link_{what}", _reading(end, hop.narrow))
        for end in (hop.child, hop.parent)
    ]
    if rates := rates_gb_s((now_generation, lanes), (full_generation, full_lanes)):
        text = f"{rates[0]} GB/s each way instead of {rates[1]}, shared by {names_of(behind)}"
        evidence.append(Evidence("what it costs", text))
    # if every hop of the node is slowed alike, it is a BIOS setting, not a failed part
    everywhere = not hop.narrow and not rest and len(case.gpus) > 1 and _all_slowed(case, hop)
    subject = of_gpu(behind[0]) if len(behind) == 1 else Subject("node", bus_id=hop.child.bus_id, name=name)
    if len(behind) == 2:
        subject = Subject("pair", gpus=(behind[0].index, behind[1].index), bus_id=hop.child.bus_id, name=name)
    virtual = (hop.width, hop.speed_gt_s) == (1, 2.5)
    return (warn if everywhere or virtual else fail)(
        subject,
        Found(f"{describe(now_generation, lanes)} from {hop.child.bus_id} up to {hop.parent.bus_id}", now, unit),
        Expected(f"{describe(full_generation, full_lanes)}: what both ends can do", ">=", full, unit, "slot maximum"),
        *evidence,
        likely="the BIOS holds every slot at a lower generation"
        if everywhere
        else "a virtual port of a switch, which shows the least there is; link.host tells what it carries"
        if virtual
        else "a switch uplink or root port trained below what it can do: a bad contact, cable, backplane or retimer",
        advice=(
            Advice("See both ends of the link:", f"sudo lspci -vvs {hop.child.bus_id} | grep -i lnk"),
            "Power the node off for 30 seconds and start it; check again with: gpudoctor check pcie.upstream",
            "Still so: it is the board, backplane or cable, not the GPU. Open a hardware case naming the bridge.",
        ),
    )


def _limited(events: list[KernelEvent]) -> Iterator[Finding]:
    """One finding for each device that the kernel found behind a slower link; which are GPUs is not known here."""
    last = {event.bus_id: event for event in events}
    for bus_id, event in last.items():
        limit = event.limit
        if limit is None:
            continue
        now = describe(generation_of(limit.speed_gt_s), limit.width)
        evidence = log_lines([event])
        subject = Subject("node", bus_id=bus_id, name=f"device {bus_id}")
        if limit.speed_gt_s <= GT_S[1]:
            # an idle bridge, or a virtual one of a hypervisor or switch, shows no more
            yield unknown(subject, f"{now} at {limit.at_bus_id} at boot: the link may have been at rest", *evidence)
            continue
        has, could = limit.available_gbit_s, limit.capable_gbit_s
        yield warn(
            subject,
            Found(f"{has:g} of {could:g} Gb/s: limited by {now} at {limit.at_bus_id}", has, "Gbit/s"),
            Expected(f"{could:g} Gb/s", ">=", could, "Gbit/s", "the device's own maximum"),
            *evidence,
            likely="a switch, root port or slot slower than the device, or a link that trained below its maximum",
            advice=(
                Advice("See both ends of the link:", f"sudo lspci -vvs {limit.at_bus_id} | grep -i lnk"),
                "LnkSta below LnkCap there: power the node off for 30 seconds; still so: board, riser or cable.",
                "LnkSta equal to LnkCap: the slot or switch is made so; move the device, or live with it.",
            ),
        )


def _all_slowed(case: Case, hop: Hop) -> bool:
    slowed = [_first_bad(gpu) for gpu in case.gpus]
    return all(other is not None and other.speed_gt_s == hop.speed_gt_s and not other.narrow for other in slowed)


def _reading(end: PcieHop, width: bool) -> str:
    now, most = (end.width, end.max_width) if width else (end.speed_gt_s, end.max_speed_gt_s)
    return f"{known(now)} (maximum {known(most)})"


def _clean(gpu: Gpu) -> Finding:
    links = links_above(gpu)
    if not links:
        return ok(of_gpu(gpu), "sits right on a root port: no link above its own")
    for hop in links:
        end, parent = hop.child, hop.parent
        widths = (end.width, end.max_width, parent.max_width)
        speeds = (end.speed_gt_s, end.max_speed_gt_s, parent.max_speed_gt_s)
        for what, now, possible, facts in (
            ("width", hop.width, hop.width_possible, widths),
            ("speed", hop.speed_gt_s, hop.speed_possible_gt_s, speeds),
        ):
            if now is None or possible is None:
                fact = next((f for f in facts if isinstance(f, Missing)), Missing("not known"))
                return unread(of_gpu(gpu), f"{what} of the link above {end.bus_id}", fact)
    above = f"{len(links)} link{'s' * (len(links) > 1)} above at full width"
    if any(hop.slow for hop in links):
        return ok(of_gpu(gpu), f"{above}; their speed is at rest, as the GPU's own is")
    return ok(of_gpu(gpu), f"{above} and speed")
