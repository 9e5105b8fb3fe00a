"""gpu.xid: errors of GPUs and NVSwitches in the kernel log since boot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.driver_messages import FORGEABLE, log_lines
from gpudoctor.checks.core.each_gpu import shown_by_driver
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, Status, ok, skip, unknown
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.core.visibility import HiddenGpu, state_of_hidden
from gpudoctor.checks.gpu.recovery_actions import RESETS
from gpudoctor.checks.gpu.xid_judged import ClassifiedEvent, judge_events, start_failed
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import KernelEvent, KernelLog
from gpudoctor.lazy import lazy_pattern
from gpudoctor.statements.xids import SXID_THERMAL, Bucket, sxid_fatal
from gpudoctor.text.grouped import grouped

# the driver's name for a GPU in lines without a bus id
_INSTANCE = lazy_pattern(r"NVRM: (GPU\d{1,3})\b")

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
    "application": "a program on the GPU; if different programs meet it, the GPU or the driver",
}


_SAVE = Advice("As root:", "dmesg -x > dmesg.txt")

_SWITCH_ADVICE = (
    Advice("Drain the node; see nvlink.fabric and nvlink.links for what still works."),
    Advice("Reset all GPUs and switches together, or reboot.", "reboot"),
    Advice("It returns: open a hardware case for the baseboard.", "nvidia-bug-report.sh"),
)


@check(
    "gpu.xid",
    title="No GPU or NVSwitch errors in the kernel log that matter",
    impact="wrong-results",
    needs_gpu=False,
    events=("xid", "sxid", "off-bus", "gsp", "rm", "unclear", "gap"),
    explains=("nvlink.errors", "collective.correct", "train.sync", "strategy.*", Explains(("gpu.lost",), found=RESETS)),
)
def xids(case: Case) -> Iterator[Finding]:
    """Judge Xids, SXids and lost-GPU lines since boot by bucket; errors of programs never fail a node.

    In a text whose lines somebody chose they are what is asked about: a warning.
    """
    log = case.node.kernel_log
    if isinstance(log.events, Missing):
        yield unread(NODE, "kernel log", log.events)
        return
    notes = _notes(log)
    by_bus = _by_bus(log.events)
    since = _since(case, log)
    for gpu in case.gpus:
        judged = judge_events(by_bus.pop(gpu.bus_id, []), gpu, shown_by_driver(case.node, gpu))
        if judged:
            yield _finding(case, of_gpu(gpu), judged, notes)
        elif not log.truncated:
            yield ok(of_gpu(gpu), f"no Xid {since}", None, Evidence("kernel log", known(log.source) or "read"), *notes)
    for gpu in case.node.gpus:
        by_bus.pop(gpu.bus_id, None)
    rest = (*_elsewhere(case, by_bus, notes), *_switches(log.events, notes), *_not_seen(case, log))
    yield from rest
    if not case.gpus and not rest and by_bus:
        yield ok(NODE, f"only messages of the driver that healthy nodes log too {since}", None, *notes)


def _by_bus(events: Iterable[KernelEvent]) -> dict[str | None, list[KernelEvent]]:
    """Group the errors by bus id.

    Lines that name a GPU only as "GPU6" are attributed to a GPU if it is the only one that failed to start.
    """
    by_bus = grouped((_bus(event), event) for event in events if event.kind in ("xid", "off-bus", "gsp", "rm"))
    starts = [bus for bus, reported in by_bus.items() if bus and any(start_failed(event) for event in reported)]
    loose = [event for event in by_bus.get(None, []) if start_failed(event)]
    instances = {found[1] for event in loose if (found := _INSTANCE.search(event.text))}
    if len(starts) == 1 and len(instances) <= 1 and loose:
        by_bus[starts[0]].extend(loose)
        by_bus[None] = [event for event in by_bus[None] if event not in loose]
    return by_bus


def _since(case: Case, log: KernelLog) -> str:
    """The period that the log covers, as text."""
    if isinstance(case.node.host.uptime_s, Missing):
        return "in this kernel log"
    return "since boot" if log.starts_s is None else "since the driver was loaded"


def _notes(log: KernelLog) -> tuple[Evidence, ...]:
    """Evidence on how far the lines of this log can be trusted."""
    notes = []
    if log.forgeable:
        notes.append(FORGEABLE)
    if log.quoted:
        text = f"not judged: the driver's words inside other text, as in the name of a program ({log.quoted} times)"
        notes.append(Evidence("kernel log", text))
    return tuple(notes)


def _not_seen(case: Case, log: KernelLog) -> Iterator[Finding]:
    """Findings for what could not be read: a lost part of the log, and lines that a user may have written."""
    if log.truncated and (case.node.gpus or case.node.driver.module_loaded is not False):
        yield unknown(NODE, log.gap or "the kernel log does not hold everything since boot")
    unclear = [event for event in known(log.events) or () if event.kind == "unclear"]
    if unclear:
        yield unknown(
            NODE,
            f"{len(unclear)} kernel log line{'s' if unclear[1:] else ''} with words of the driver{_codes(unclear)} "
            "in a place where gpudoctor does not know them: an error, or a user's words",
            *log_lines(unclear[:3]),
            advice=("Read these lines, or save the log again in a form that says what the kernel wrote.", _SAVE),
        )


def _codes(unclear: list[KernelEvent]) -> str:
    """The Xids in the lines with their GPUs, as text: " (Xid 79 of 0000:3b:00.0)"."""
    named = [f"Xid {e.code}" + (f" of {e.bus_id}" if e.bus_id else "") for e in unclear if e.code is not None]
    return f" ({', '.join(dict.fromkeys(named))})" if named else ""


def _elsewhere(
    case: Case, by_bus: dict[str | None, list[KernelEvent]], notes: tuple[Evidence, ...]
) -> Iterator[Finding]:
    """Events of GPUs that the driver does not show: gone, or hidden from this process."""
    for bus, events in by_bus.items():
        judged = judge_events(events, None)
        if bus is None and any(shown_by_driver(case.node, gpu) for gpu in case.node.gpus):
            # GPUs that the driver shows have started; gpu.count reports those that it does not show
            judged = [
                msgspec.structs.replace(item, bucket="watch") if start_failed(item.event) else item for item in judged
            ]
        if not judged:
            continue
        subject = Subject(kind="gpu", bus_id=bus) if bus else NODE
        finding = _finding(case, subject, judged, notes)
        hidden = state_of_hidden(case.node, bus) if bus else HiddenGpu("missing")
        if bus and case.scope is not None:
            hidden = HiddenGpu("outside", hidden.why or case.scope_reason)
        codes = ", ".join(sorted({_name(item) for item in judged}))
        if hidden.kind == "outside":
            yield skip(
                subject, f"{codes} on a GPU outside what is judged here" + (f": {hidden.why}" if hidden.why else "")
            )
        elif hidden.kind == "open" and finding.status is not Status.PASS:
            yield unknown(subject, f"{codes} on a GPU that may be this job's own: {hidden.why}", *finding.evidence)
        else:
            yield finding


def _bus(event: KernelEvent) -> str | None:
    """The bus id with its function: an Xid line contains the device only."""
    bus = event.bus_id
    return bus if bus is None or "." in bus else f"{bus}.0"


def _name(item: ClassifiedEvent) -> str:
    if item.event.kind == "xid":
        return f"Xid {item.event.code}"
    return {"off-bus": "off the bus", "gsp": "GSP error", "rm": "driver error"}.get(item.event.kind, item.event.kind)


def _finding(case: Case, subject: Subject, judged: list[ClassifiedEvent], notes: tuple[Evidence, ...]) -> Finding:
    worst = judged[0]
    asked_about = worst.bucket == "application" and case.node.source.may_be_part
    status = Status.WARN if asked_about else _STATUS[worst.bucket]
    # the line without a code that follows an Xid 79 repeats it
    lost = {item.words for item in judged if item.event.code == 79}
    reported = [item for item in judged if item.event.kind != "off-bus" or item.words not in lost]
    counts = Counter((_name(item), item.words) for item in reported)
    text = "; ".join(f"{name}: {message}" + (f" ({n} times)" if n > 1 else "") for (name, message), n in counts.items())
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
        (*log_lines(lines), *notes),
        worst.likely or (_LIKELY.get(worst.bucket) if advice else None),
        advice,
    )


def _switches(events: Iterable[KernelEvent], notes: tuple[Evidence, ...]) -> Iterator[Finding]:
    """One finding per NVSwitch that logged anything."""
    by_switch = grouped((_bus(event) or "unknown", event) for event in events if event.kind == "sxid")
    for bus, logged in by_switch.items():
        fatal = [e for e in logged if sxid_fatal(e.code, e.fatal)]
        doubtful = [e for e in logged if e.code in SXID_THERMAL or sxid_fatal(e.code, e.fatal) is None]
        worst = fatal or doubtful or logged
        codes = ", ".join(f"SXid {code}" for code in dict.fromkeys(e.code for e in worst))
        status = Status.FAIL if fatal else Status.WARN if doubtful else Status.PASS
        kind = "fatal" if fatal else "of unknown weight, or heat" if doubtful else "non-fatal"
        yield Finding(
            status,
            Subject(kind="node", name=f"NVSwitch {bus}"),
            Found(f"{codes} ({kind})", worst[-1].code),
            Expected("no fatal NVSwitch error", source="the switch driver's own words, else the Fabric Manager guide"),
            (*log_lines(worst[-3:]), *notes),
            None if status is Status.PASS else "the NVSwitch, or the link to one of its GPUs",
            () if status is Status.PASS else _SWITCH_ADVICE,
        )
