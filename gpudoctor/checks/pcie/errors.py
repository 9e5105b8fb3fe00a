"""pcie.errors: does a GPU's PCIe link count far more errors than its peers?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import each_gpu, first_failed, out_of_line
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import (
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    Status,
    fail,
    ok,
    skip,
    unread,
    warn,
)
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.runner import NO_GPU
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu
from gpudoctor.checks.gpu.xid_codes import BUS_CODES
from gpudoctor.facts.model.driver import KernelEvent
from gpudoctor.facts.model.gpu import Gpu, PcieHop
from gpudoctor.facts.model.missing import Missing, known

# "nvidia 0000:81:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer": the driver's name means a GPU
_OWN = re.compile(r"\bnvidia ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): PCIe Bus Error: severity=([\w ()-]{1,40})")
_ENOUGH_TO_COMPARE = 4
_LOOK = (
    Advice("See the kernel's words:", "sudo dmesg | grep -iE 'AER|pcieport'"),
    "Reseat the GPU and its riser or cable; move it to another slot and see whether the errors follow it.",
    "They follow the GPU: open a hardware case for it. They stay: for the board or riser.",
)
_FLOOR_ERRORS = Limit(
    1000, "errors", "healthy H100 nodes show up to about 200 lifetime replays a GPU (ours)", name="floor_errors"
)
_PEERS_RATIO = Limit(
    100,
    "times the peers' median",
    "two orders of magnitude: lifetime counts differ by chance (ours)",
    name="peers_ratio",
)


@check(
    "pcie.errors",
    title="No GPU's PCIe link counts errors out of line with its peers",
    impact="costs",
    needs_gpu=False,
    limits=(_FLOOR_ERRORS, _PEERS_RATIO),
    explains=(Explains(("gpu.xid",), found=BUS_CODES),),
)
def errors(case: Case) -> Iterator[Finding]:
    """Judge each GPU's counters; without counters, the PCIe errors of NVIDIA functions in the kernel log."""
    found = tuple(_each(case))
    counted = {f.subject.bus_id for f in found if f.status is not Status.SKIP}
    logged = tuple(f for f in _logged(case) if f.subject.bus_id not in counted)
    told = {f.subject.bus_id for f in logged}
    yield from (f for f in found if f.subject.bus_id not in told)
    yield from logged
    if not found and not logged:
        yield skip(NODE, NO_GPU)


def _logged(case: Case) -> Iterator[Finding]:
    """One finding for each NVIDIA function with its own AER lines in a captured log, which has no counters."""
    if case.node.source.kind != "capture":
        return
    by_bus: dict[str, list[KernelEvent]] = {}
    for event in known(case.node.kernel_log.events) or ():
        if event.kind == "aer" and event.bus_id is not None and (said := _OWN.search(event.text)):
            by_bus.setdefault(said[1], []).append(event)
    by_gpu = {gpu.bus_id: gpu for gpu in case.node.gpus}
    for bus_id, events in by_bus.items():
        kinds = sorted({said[2].strip() for event in events if (said := _OWN.search(event.text))})
        lines = f"{len(events)} line{'s' * (len(events) > 1)}"
        yield warn(
            of_gpu(by_gpu[bus_id]) if bus_id in by_gpu else Subject(kind="gpu", bus_id=bus_id),
            Found(f"the kernel log tells of PCIe errors of it: {', '.join(kinds)} ({lines})", len(events), "lines"),
            Expected("none", source="PCIe advanced error reporting"),
            *(Evidence("kernel log", event.text[:300]) for event in events[-2:]),
            likely="the link sends much again, or lost data: a riser, cable, slot or contact at its edge",
            advice=_LOOK,
        )


@each_gpu
def _each(case: Case, gpu: Gpu) -> Finding:
    """Fatal errors fail and non-fatal ones warn; corrected ones count only if far above the peers'."""
    subject, path = of_gpu(gpu), known(gpu.pcie.path) or ()
    # a bridge may be shared with other devices: its counts alone do not show a fault of this GPU
    fatal = [(hop, count) for hop in path if (count := known(hop.aer_fatal))]
    nonfatal = [(hop, count) for hop in path[:1] if (count := known(hop.aer_nonfatal))]
    if fatal:
        return _reported(gpu, "fatal", fatal)
    usual = _counted_by_all(case, gpu) if nonfatal else None
    if nonfatal and usual is None:
        return _reported(gpu, "non-fatal", nonfatal)
    seen = {name: count for name, read in _COUNTERS.items() if (count := read(gpu)) is not None}
    replays = gpu.pcie.replays
    if not seen or first_failed([replays]):
        return unread(subject, "PCIe error counters", replays if isinstance(replays, Missing) else Missing("not known"))
    floor, ratio = case.limit(_FLOOR_ERRORS, gpu), case.limit(_PEERS_RATIO, gpu)
    for name, count in seen.items():
        peers = [n for peer in case.gpus if peer is not gpu and (n := _COUNTERS[name](peer)) is not None]
        bound = out_of_line(count, peers, floor, ratio)
        if bound is not None:
            return warn(
                subject,
                Found(f"{count} {name} since driver load", count, "errors"),
                Expected(f"below {bound:.0f}, {ratio:.0f} times what the peers count", "<", bound, "errors", "peers"),
                Evidence("nvmlDeviceGetPcieReplayCounter" if name == "replays" else "aer_dev_correctable", str(count)),
                Evidence("the peers", ", ".join(map(str, peers)) or "none to compare"),
                likely="the link sends much again: a riser, cable or contact at the edge of what it can carry",
                advice=_LOOK,
            )
    words = " and ".join(f"{count} {name}" for name, count in seen.items())
    note = ": lifetime counts, in line with the peers; a rate needs load" if any(seen.values()) else ""
    if usual is not None:
        note += f"; {usual} non-fatal errors since boot, as on all the others: the platform's own, not one link's"
    return ok(subject, Found(words + note, max(seen.values()), "errors"))


def _reported(gpu: Gpu, kind: str, hits: list[tuple[PcieHop, int]]) -> Finding:
    """A finding for errors counted by PCIe's advanced error reporting; only fatal ones of the GPU itself fail."""
    total = sum(count for _, count in hits)
    own = any(hop is (known(gpu.pcie.path) or (None,))[0] for hop, _ in hits)
    return (fail if kind == "fatal" and own else warn)(
        of_gpu(gpu),
        Found(f"{total} {kind} PCIe errors since boot" + ("" if own else " on the bridges above"), total, "errors"),
        Expected("none", "==", 0, "errors", "PCIe advanced error reporting"),
        *(
            Evidence(f"/sys/bus/pci/devices/{hop.bus_id}/aer_dev_{kind.replace('-', '')}", str(count))
            for hop, count in hits
        ),
        likely="the link lost data that it could not repair: riser, slot, cable, power or the GPU itself",
        advice=_LOOK,
    )


def _counted_by_all(case: Case, gpu: Gpu) -> int | None:
    """The GPU's non-fatal errors, if all of at least four GPUs count about as many; else None.

    Enumeration and resets leave such counts (Unsupported Request) on every device alike; they do not grow later.
    """
    paths = [known(peer.pcie.path) for peer in case.gpus]
    counts = [known(path[0].aer_nonfatal) or 0 if path else 0 for path in paths]
    own = counts[case.gpus.index(gpu)]
    return own if len(counts) >= _ENOUGH_TO_COMPARE and own and max(counts) <= 2 * min(counts) else None


def _corrected(gpu: Gpu) -> int | None:
    path = known(gpu.pcie.path)
    return known(path[0].aer_correctable) if path else None


_COUNTERS: dict[str, Callable[[Gpu], int | None]] = {
    "replays": lambda gpu: known(gpu.pcie.replays),
    "corrected errors": _corrected,
}
