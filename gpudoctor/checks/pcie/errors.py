"""pcie.errors: does a GPU's PCIe link count far more errors than its peers?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpudoctor.checks.core.case import Case, Limit, once_a_case
from gpudoctor.checks.core.driver_messages import DAY_S, log_lines
from gpudoctor.checks.core.each_gpu import each_gpu, out_of_line
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, Status, fail, ok, skip, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.runner import NO_GPU
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu
from gpudoctor.checks.core.unread import first_failed, unread
from gpudoctor.facts.model.driver import KernelEvent
from gpudoctor.facts.model.gpu import Gpu, PcieHop
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.lazy import lazy_pattern
from gpudoctor.statements.xids import BUS_CODES
from gpudoctor.text.grouped import grouped
from gpudoctor.text.units import counted

# "nvidia 0000:81:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer": the driver's name means a GPU
_GPU = r"\bnvidia [0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]: "
# an uncorrected error at the GPU or above it, after which the kernel cannot bring the GPU back
_NO_RECOVERY = rf"{_GPU}AER: can't recover"
_NOT_RECOVERED = lazy_pattern(_NO_RECOVERY)
_OWN = lazy_pattern(rf"{_GPU}PCIe Bus Error: severity=|{_NO_RECOVERY}")
# Linux 6.11 and later say Correctable and Uncorrectable
_SEVERITY = lazy_pattern(
    r"(?:severity=|AER: (?:Multiple )?)((?:Corrected|Correctable|Uncorrect\w{2,4})(?: \([\w-]{1,12}\))?)"
)
_CORRECTED = lazy_pattern(r"(?:severity=|AER: (?:Multiple )?)Correct")
# who announces an error, and often names as its source only a root complex
_ANNOUNCED = lazy_pattern(r"\bpcieport ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): AER: .*\breceived\b")
_NON_FATAL = lazy_pattern(r"\(Non-Fatal\)")
_LOST = "Uncorrect"
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
_CORRECTED_LINES = Limit(
    10,
    "lines a day",
    "single corrected errors are normal; the kernel limits how many it prints (ours)",
    name="corrected_lines",
    status="warn",
)


@check(
    "pcie.errors",
    title="No GPU's PCIe link counts errors out of line with its peers",
    impact="costs",
    needs_gpu=False,
    limits=(_FLOOR_ERRORS, _PEERS_RATIO, _CORRECTED_LINES),
    events=("aer",),
    explains=(Explains(("gpu.xid",), found=BUS_CODES),),
)
def errors(case: Case) -> Iterator[Finding]:
    """Judge each GPU's counters, and the PCIe errors in the kernel log of GPUs and other devices without counters."""
    found = tuple(_each(case))
    judged = {f.subject.bus_id for f in found if f.status is not Status.SKIP}
    logged = tuple(
        f
        for f in _logged(case)
        if f.subject.bus_id not in judged or f.status is Status.FAIL or (f.found and _LOST in f.found.text)
    )
    reported = {f.subject.bus_id for f in logged}
    yield from (f for f in found if f.subject.bus_id not in reported)
    yield from logged
    others = tuple(_of_other_devices(case))
    yield from others
    if not found and not logged and not others:
        yield skip(NODE, NO_GPU)


def _logged(case: Case) -> Iterator[Finding]:
    """One finding for each NVIDIA function with its own AER lines in the log, and no AER counters that say more."""
    by_gpu = {gpu.bus_id: gpu for gpu in case.node.gpus}
    with_counters = _with_counters(case)
    for bus_id, events in _by_device(case).items():
        own = [event for event in events if _OWN.search(event.text)]
        if own and bus_id not in with_counters:
            text = f"the kernel log tells of PCIe errors of it: {_kinds(own)} ({counted(len(own), 'line')})"
            yield (fail if any(_NOT_RECOVERED.search(event.text) for event in own) else warn)(
                of_gpu(by_gpu[bus_id]) if bus_id in by_gpu else Subject(kind="gpu", bus_id=bus_id),
                Found(text, len(own), "lines"),
                Expected("none", source="PCIe advanced error reporting"),
                *log_lines(own[-2:]),
                likely="the link sends much again, or lost data: a riser, cable, slot or contact at its edge",
                advice=_LOOK,
            )


def _of_other_devices(case: Case) -> Iterator[Finding]:
    """The AER lines of bridges and other devices: those that lost data, and many corrected ones, are warnings.

    Corrected ones are only if a GPU is behind the device, or if no GPU is known; in a text without GPUs, whose lines
    somebody chose, even few of a port are. The counters of the bridges above GPUs are read on a live node, and judged
    with the GPUs.
    """
    above = {hop.bus_id for gpu in case.node.gpus for hop in known(gpu.pcie.path) or ()}
    judged = _with_counters(case) | {gpu.bus_id for gpu in case.node.gpus}
    for bus_id, events in _by_device(case).items():
        if bus_id in judged or any(_OWN.search(event.text) for event in events):
            continue
        lost = _lost_data(case, events)
        shown = lost or events
        found = Found(f"PCIe errors: {_kinds(shown)} ({counted(len(shown), 'line')})", len(events), "lines")
        subject = Subject("node", bus_id=bus_id, name=f"device {bus_id}" if bus_id else "a device")
        evidence = log_lines(shown[-2:])
        chosen = case.node.source.may_be_part and not case.node.gpus
        asked_about = chosen and any("pcieport " in event.text for event in events)
        few = _most_a_day(events) < case.limit(_CORRECTED_LINES) and not asked_about
        no_gpu_behind = bool(case.node.gpus) and bus_id not in above
        if not lost and (few or no_gpu_behind):
            yield ok(subject, found, None, *evidence)
            continue
        yield warn(
            subject,
            found,
            Expected("none that lost data, and few corrected ones", source="PCIe advanced error reporting"),
            *evidence,
            likely="the link sends much again, or lost data; a GPU may be behind it",
            advice=(Advice("See what is there and behind it.", f"lspci -tv; lspci -s {bus_id} -vv"), *_LOOK),
        )


def _lost_data(case: Case, events: list[KernelEvent]) -> list[KernelEvent]:
    """The lines of uncorrected errors; in a log since boot only fatal ones, since enumeration leaves non-fatal ones."""
    is_since_boot = known(case.node.host.uptime_s) is not None
    lost = [event for event in events if not _CORRECTED.search(event.text)]
    return [event for event in lost if not (is_since_boot and _NON_FATAL.search(event.text))]


def _with_counters(case: Case) -> set[str]:
    """The GPUs and bridges of which the kernel's AER counters are known: they say more than lines of the log."""
    hops = (hop for gpu in case.node.gpus for hop in known(gpu.pcie.path) or ())
    return {hop.bus_id for hop in hops if not isinstance(hop.aer_fatal, Missing)}


def _by_device(case: Case) -> dict[str | None, list[KernelEvent]]:
    """The AER lines by device, without those in which a bridge announces the line of another device."""
    logged = known(case.node.kernel_log.events) or ()
    by_bus = grouped((event.bus_id, event) for event in logged if event.kind == "aer")
    own = {
        bus: [event for event in events if "PCIe Bus Error" in event.text or _NOT_RECOVERED.search(event.text)]
        for bus, events in by_bus.items()
    }
    telling = {bus for bus, events in own.items() if events}
    return {bus: own[bus] or events for bus, events in by_bus.items() if own[bus] or not _repeated(events, telling)}


def _repeated(events: list[KernelEvent], telling: set[str | None]) -> bool:
    """Whether all lines are of bridges that tell of the same error in a line of their own."""
    announced = (_ANNOUNCED.search(event.text) for event in events)
    return all(found is not None and found[1] in telling for found in announced)


def _kinds(events: list[KernelEvent]) -> str:
    kinds = (_SEVERITY.search(event.text) for event in events)
    return ", ".join(sorted({kind[1].strip() if kind else "an error without recovery" for kind in kinds}))


def _most_a_day(events: list[KernelEvent]) -> int:
    """The number of lines within the day before the last one; all of them if their times are not known."""
    times = [event.time_s for event in events]
    last = times[-1]
    return sum(last is None or time_s is None or time_s > last - DAY_S for time_s in times)


@each_gpu
def _each(case: Case, gpu: Gpu) -> Finding:
    """Fatal errors fail and non-fatal ones warn; corrected ones count only if far above the peers'."""
    path = known(gpu.pcie.path) or ()
    # a bridge may be shared with other devices: its counts alone do not show a fault of this GPU
    fatal = [(hop, count) for hop in path if (count := known(hop.aer_fatal))]
    nonfatal = [(hop, count) for hop in path[:1] if (count := known(hop.aer_nonfatal))]
    usual = _counted_by_all(case, gpu) if nonfatal else None
    if fatal:
        return _reported(gpu, "fatal", fatal)
    if nonfatal and usual is None:
        return _reported(gpu, "non-fatal", nonfatal)
    counts = {name: count for name, read in _COUNTERS.items() if (count := read(gpu)) is not None}
    replays = gpu.pcie.replays
    if not counts or first_failed([replays]):
        missing = replays if isinstance(replays, Missing) else Missing("not known")
        return unread(of_gpu(gpu), "PCIe error counters", missing)
    outliers = (_far_above_peers(case, gpu, name, count) for name, count in counts.items())
    return next((finding for finding in outliers if finding is not None), None) or _in_line(gpu, counts, usual)


def _far_above_peers(case: Case, gpu: Gpu, name: str, count: int) -> Finding | None:
    counts = _ordered(case)[name]
    bound = out_of_line(count, counts, case.limit(_FLOOR_ERRORS, gpu), case.limit(_PEERS_RATIO, gpu))
    if bound is None:
        return None
    peers = list(counts)
    peers.remove(count)
    return warn(
        of_gpu(gpu),
        Found(f"{count} {name} since driver load", count, "errors"),
        Expected(f"below {bound:.0f}: in line with the peers", "<", bound, "errors", "peers"),
        Evidence("nvmlDeviceGetPcieReplayCounter" if name == "replays" else "aer_dev_correctable", str(count)),
        Evidence("the peers", ", ".join(map(str, peers)) or "none to compare"),
        likely="the link sends much again: a riser, cable or contact at the edge of what it can carry",
        advice=_LOOK,
    )


def _in_line(gpu: Gpu, counts: dict[str, int], nonfatal: int | None) -> Finding:
    text = " and ".join(f"{count} {name}" for name, count in counts.items())
    if any(counts.values()):
        text += ": lifetime counts, in line with the peers; a rate needs load"
    if nonfatal is not None:
        text += f"; {nonfatal} non-fatal errors since boot, as on all the others: the platform's own, not one link's"
    return ok(of_gpu(gpu), Found(text, max(counts.values()), "errors"))


def _reported(gpu: Gpu, kind: str, hits: list[tuple[PcieHop, int]]) -> Finding:
    """A finding for errors counted by PCIe's advanced error reporting; only fatal ones of the GPU itself fail."""
    total = sum(count for _, count in hits)
    own = any(hop is (known(gpu.pcie.path) or (None,))[0] for hop, _ in hits)
    counter = f"aer_dev_{kind.replace('-', '')}"
    return (fail if kind == "fatal" and own else warn)(
        of_gpu(gpu),
        Found(f"{total} {kind} PCIe errors since boot" + ("" if own else " on the bridges above"), total, "errors"),
        Expected("none", "==", 0, "errors", "PCIe advanced error reporting"),
        *(Evidence(f"/sys/bus/pci/devices/{hop.bus_id}/{counter}", str(count)) for hop, count in hits),
        likely="the link lost data that it could not repair: riser, slot, cable, power or the GPU itself",
        advice=_LOOK,
    )


def _counted_by_all(case: Case, gpu: Gpu) -> int | None:
    """The GPU's non-fatal errors, if all of at least four GPUs count about as many; else None.

    Enumeration and resets leave such counts (Unsupported Request) on every device alike; they do not grow later.
    """
    low, high = _nonfatal_range(case)
    return _nonfatal(gpu) if len(case.gpus) >= _ENOUGH_TO_COMPARE and 0 < high <= 2 * low else None


@once_a_case
def _nonfatal_range(case: Case) -> tuple[int, int]:
    counts = [_nonfatal(gpu) for gpu in case.gpus]
    return min(counts), max(counts)


def _nonfatal(gpu: Gpu) -> int:
    path = known(gpu.pcie.path)
    return (known(path[0].aer_nonfatal) or 0) if path else 0


def _corrected(gpu: Gpu) -> int | None:
    path = known(gpu.pcie.path)
    return known(path[0].aer_correctable) if path else None


_COUNTERS: dict[str, Callable[[Gpu], int | None]] = {
    "replays": lambda gpu: known(gpu.pcie.replays),
    "corrected errors": _corrected,
}


@once_a_case
def _ordered(case: Case) -> dict[str, list[int]]:
    """Of each counter, what the GPUs count, in ascending order."""
    return {name: sorted(n for g in case.gpus if (n := read(g)) is not None) for name, read in _COUNTERS.items()}
