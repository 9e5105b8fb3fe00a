"""gpu.xid: what the kernel log says of GPUs and NVSwitches since boot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.explains import RESETS, Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, Status, ok, skip, unknown, unread
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu
from gpudoctor.checks.core.trust import narrowed, untrusted
from gpudoctor.checks.core.xid_codes import BUCKETS, LINK_CODES, SXID_THERMAL, Bucket, sxid_fatal, xid
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import KernelEvent, KernelLog

# "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
_RECOVERY = re.compile(
    r"GPU recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x([0-9a-f]+) \(([^)]*)\)", re.IGNORECASE
)
_NON_FATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)
_FATAL = re.compile(r"\bfatal\b", re.IGNORECASE)
# driver lines that mean a sick GPU; what else NVRM writes is chatter that healthy nodes log too
_SICK = re.compile(
    r"rminitadapter failed|rm_init_adapter failed|reset_required|needs to be reset|timeout|rate limiting", re.IGNORECASE
)

_STATUS: dict[Bucket, Status] = {
    "hardware": Status.FAIL,
    "reset": Status.FAIL,
    "unknown": Status.WARN,
    "watch": Status.WARN,
    "application": Status.PASS,
    "info": Status.PASS,
}
_LIKELY: dict[Bucket, str] = {
    "hardware": "the board, its power or its slot",
    "reset": "the GPU stopped and, as far as can be seen, was not reset since",
    "unknown": "a code that this version does not know",
    "watch": "an error that the GPU survived, or one that was settled by a reset since",
}


_SAVE = Advice("As root:", "dmesg -x > dmesg.txt")


class ClassifiedEvent(msgspec.Struct, frozen=True):
    """A kernel event with the bucket it falls into here, and what it means."""

    event: KernelEvent
    bucket: Bucket
    words: str
    advice: str


@check(
    "gpu.xid",
    title="No GPU or NVSwitch errors in the kernel log that matter",
    impact="wrong-results",
    needs_gpu=False,
    explains=("nvlink.errors", "collective.correct", "train.sync", "strategy.*", Explains(("gpu.lost",), found=RESETS)),
)
def xids(case: Case) -> Iterator[Finding]:
    """Judge Xids, SXids and lost-GPU lines since boot by bucket; programs' own errors never fail a node."""
    log = case.node.kernel_log
    if isinstance(log.events, Missing):
        yield unread(NODE, "kernel log", log.events)
        return
    notes = _notes(log)
    by_bus: dict[str | None, list[KernelEvent]] = {}
    for event in log.events:
        if event.kind in ("xid", "off-bus", "gsp", "rm"):
            by_bus.setdefault(_bus(event), []).append(event)
    since = _since(case, log)
    for gpu in case.gpus:
        judged = _judge(by_bus.pop(gpu.bus_id, []), gpu)
        if judged:
            yield _finding(of_gpu(gpu), judged, notes)
        elif not log.truncated:
            yield ok(of_gpu(gpu), f"no Xid {since}", None, Evidence("kernel log", known(log.source) or "read"), *notes)
    for gpu in case.node.gpus:
        by_bus.pop(gpu.bus_id, None)
    yield from _elsewhere(case, by_bus, notes)
    yield from _switches(log.events, notes)
    yield from _not_seen(case, log)


def _since(case: Case, log: KernelLog) -> str:
    """From when on the log is known."""
    if case.node.source.kind == "capture":
        return "in this kernel log"
    return "since boot" if log.starts_s is None else "since the driver was loaded"


def _notes(log: KernelLog) -> tuple[Evidence, ...]:
    """How far the lines of this log can be relied on."""
    notes = []
    if log.forgeable:
        words = "this text does not tell which lines are the kernel's own: a user of the machine could have forged them"
        notes.append(Evidence("kernel log", words))
    if log.quoted:
        words = f"not judged: the driver's words inside other text, as in the name of a program ({log.quoted} times)"
        notes.append(Evidence("kernel log", words))
    return tuple(notes)


def _not_seen(case: Case, log: KernelLog) -> Iterator[Finding]:
    """What could not be read: a lost part of the log, lines that cannot be told from a user's words."""
    if log.truncated and (case.node.gpus or case.node.driver.module_loaded is not False):
        yield unknown(NODE, log.gap or "the kernel log does not hold everything since boot")
    unclear = [event for event in known(log.events) or () if event.kind == "unclear"]
    if unclear:
        yield unknown(
            NODE,
            f"{len(unclear)} kernel log line{'s' if unclear[1:] else ''} with words of the driver in a place where "
            "gpudoctor does not know them: an error, or a user's words",
            *(Evidence("kernel log", event.text[:300]) for event in unclear[:3]),
            advice=("Read these lines, or save the log again in a form that says what the kernel wrote.", _SAVE),
        )


def _elsewhere(
    case: Case, by_bus: dict[str | None, list[KernelEvent]], notes: tuple[Evidence, ...]
) -> Iterator[Finding]:
    """Events of GPUs that the driver does not show: gone, or hidden from this process."""
    why = narrowed(case) or case.scope_reason
    for bus, events in by_bus.items():
        judged = _judge(events, None)
        if not judged:
            continue
        subject = Subject(kind="gpu", bus_id=bus) if bus else NODE
        if bus and (why or case.scope is not None):
            codes = ", ".join(sorted({_name(item) for item in judged}))
            yield skip(subject, f"{codes} on a GPU outside what is judged here" + (f": {why}" if why else ""))
        else:
            yield _finding(subject, judged, notes)


def _bus(event: KernelEvent) -> str | None:
    """The function's bus id: an Xid line names the device only."""
    bus = event.bus_id
    return bus if bus is None or "." in bus else f"{bus}.0"


def _judge(events: Iterable[KernelEvent], gpu: Gpu | None) -> list[ClassifiedEvent]:
    """Worst first. A GPU that asks for no recovery now was reset since its resettable errors.

    The last Xid 154 is the authority: "(None)" settles everything before it, anything else
    stands, unless the GPU itself answers today that it needs nothing.
    """
    events = tuple(events)
    settled_before = max((i for i, e in enumerate(events) if e.code == 154 and _target(e) == 0), default=-1)
    fit_now = gpu is not None and not untrusted(gpu) and known(gpu.recovery_action) == "none"
    judged = []
    for position, event in enumerate(events):
        item = _classify(event)
        if item is None:
            continue
        settled = position < settled_before
        if (item.bucket == "reset" and (settled or fit_now)) or (item.bucket == "hardware" and settled):
            item = msgspec.structs.replace(item, bucket="watch", words=f"{item.words} (settled since)")
        judged.append(item)
    # of equally bad ones the one that a bad link cannot explain comes first: it is what faults.py looks at
    return sorted(judged, key=lambda item: (BUCKETS.index(item.bucket), item.event.code in LINK_CODES))


def _driver_words(event: KernelEvent) -> str:
    """What the driver says in the line, without what a user can write into it."""
    # 10 ms of patterns (-X importtime), which a log without errors does not need
    from gpudoctor.facts.kernel_log.lines import driver_words

    return driver_words(event)


def _target(event: KernelEvent) -> int | None:
    found = _RECOVERY.match(_driver_words(event))
    return int(found[1], 16) if found else None


def _classify(event: KernelEvent) -> ClassifiedEvent | None:
    if event.kind == "off-bus":
        return ClassifiedEvent(event, "hardware", "GPU has fallen off the bus", xid(79).advice)
    if event.kind in ("gsp", "rm"):
        return (
            ClassifiedEvent(event, "watch", "driver error", xid(119).advice)
            if _SICK.search(_driver_words(event))
            else None
        )
    if event.code is None:
        return ClassifiedEvent(event, "unknown", "an Xid without a code", xid(0).advice)
    entry = xid(event.code)
    bucket, words = entry.bucket, entry.words
    said = _driver_words(event)
    if event.code == 154:
        found = _RECOVERY.match(said)
        if found is None:
            return ClassifiedEvent(event, "unknown", f"{words}, but the line does not say to what", xid(46).advice)
        if int(found[1], 16) == 0:
            return ClassifiedEvent(event, "info", words, entry.advice)
        # drain-p2p (3) asks for care, the others make the GPU unfit; source: NVML field 230
        bucket, words = ("watch" if int(found[1], 16) == 3 else "reset"), f"the GPU asks for: {found[2]}"
        return ClassifiedEvent(event, bucket, words, xid(46).advice)
    if 144 <= event.code <= 150:
        if event.fatal is False or _NON_FATAL.search(said):
            bucket, words = "info", f"{words}, non-fatal"
        elif event.fatal or _FATAL.search(said):
            bucket, words = "reset", f"{words}, fatal"
    return ClassifiedEvent(event, bucket, words, entry.advice if bucket == entry.bucket else xid(74).advice)


def _name(item: ClassifiedEvent) -> str:
    if item.event.kind == "xid":
        return f"Xid {item.event.code}"
    return {"off-bus": "off the bus", "gsp": "GSP error", "rm": "driver error"}.get(item.event.kind, item.event.kind)


def _finding(subject: Subject, judged: list[ClassifiedEvent], notes: tuple[Evidence, ...]) -> Finding:
    worst = judged[0]
    status = _STATUS[worst.bucket]
    counts = Counter((_name(item), item.words) for item in judged)
    text = "; ".join(f"{name}: {words}" + (f" ({n} times)" if n > 1 else "") for (name, words), n in counts.items())
    if status is Status.PASS:
        text = f"nothing that needs a reset or hands: {text}"
    lines = [item.event for item in judged if item.bucket == worst.bucket][-3:]
    advice: tuple[Advice, ...] = ()
    if status is not Status.PASS:
        steps = dict.fromkeys(item.advice for item in judged if item.bucket == worst.bucket)
        advice = (*(Advice(step) for step in steps), Advice("Read the lines around it.", "dmesg -T | grep -i -A3 xid"))
    return Finding(
        status,
        subject,
        Found(text, worst.event.code),
        Expected("no error that needs a reset or hands", source="NVIDIA's Xid catalogue"),
        (*(Evidence("kernel log", line.text[:300]) for line in lines), *notes),
        _LIKELY.get(worst.bucket),
        advice,
    )


def _switches(events: Iterable[KernelEvent], notes: tuple[Evidence, ...]) -> Iterator[Finding]:
    """One finding per NVSwitch that logged anything."""
    by_switch: dict[str, list[KernelEvent]] = {}
    for event in events:
        if event.kind == "sxid":
            by_switch.setdefault(_bus(event) or "unknown", []).append(event)
    for bus, logged in by_switch.items():
        fatal = [e for e in logged if sxid_fatal(e.code, e.fatal)]
        doubtful = [e for e in logged if e.code in SXID_THERMAL or sxid_fatal(e.code, e.fatal) is None]
        worst = fatal or doubtful or logged
        codes = ", ".join(f"SXid {code}" for code in dict.fromkeys(e.code for e in worst))
        status = Status.FAIL if fatal else Status.WARN if doubtful else Status.PASS
        kind = "fatal" if fatal else "of unknown weight, or heat" if doubtful else "non-fatal"
        advice = (
            ()
            if status is Status.PASS
            else (
                Advice("Drain the node; see nvlink.fabric and nvlink.links for what still works."),
                Advice("Reset all GPUs and switches together, or reboot.", "reboot"),
                Advice("It returns: open a hardware case for the baseboard.", "nvidia-bug-report.sh"),
            )
        )
        yield Finding(
            status,
            Subject(kind="node", name=f"NVSwitch {bus}"),
            Found(f"{codes} ({kind})", worst[-1].code),
            Expected("no fatal NVSwitch error", source="the switch driver's own words, else the Fabric Manager guide"),
            (*(Evidence("kernel log", e.text[:300]) for e in worst[-3:]), *notes),
            None if status is Status.PASS else "the NVSwitch, or the link to one of its GPUs",
            advice,
        )
