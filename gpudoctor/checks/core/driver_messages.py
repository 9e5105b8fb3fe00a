"""What kernel messages without an Xid mean: those of the driver, with the GPUs not started, and those of the host."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.each_gpu import shown_by_driver
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, Status, fail, unknown, warn
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu
from gpudoctor.facts.model.driver import KernelEvent
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import HostEvent, Node
from gpudoctor.lazy import lazy_imports, lazy_pattern
from gpudoctor.statements.xids import OWN_ADVICE, Bucket

with lazy_imports():
    from gpudoctor.facts.kernel_log import lines as kernel_lines
    from gpudoctor.facts.kernel_log import message_tables as driver_log

_BOARD = "the board, its power, its slot, or a state that only a reset ends"
_OTHER_DRIVER = "the installed driver is not one for this GPU; the GPU may be sound"
_RESET = "Drain the node and reset the GPU; if it does not start then, power-cycle the node (off for 30 s)."
# what turns a GSP timeout or heartbeat message into a fault; healthy nodes log the other ones too
_SICK = lazy_pattern(r"reset_required|needs to be reset|needs? a reset|timeout|timed out|rate limiting", re.IGNORECASE)
_CODES = lazy_pattern(r"RmInitAdapter failed!? ?(\([0-9a-fA-Fx:]{1,40}\))")
_ATTEMPT_S = 60.0
_LONGEST_LINE = 300
FORGEABLE = Evidence(
    "kernel log",
    "this text does not tell which lines are the kernel's own: a user of the machine could have forged them",
)
DAY_S = 86_400.0


def log_lines(events: Iterable[KernelEvent | HostEvent]) -> tuple[Evidence, ...]:
    """Lines of the kernel log as evidence, each cut where it would fill the screen."""
    return tuple(Evidence("kernel log", event.text[:_LONGEST_LINE]) for event in events)


class MessageMeaning(msgspec.Struct, frozen=True):
    """What one kind of message means. `bucket` as for an Xid; `not_started`: programs cannot use the GPU."""

    bucket: Bucket
    words: str
    advice: str
    not_started: bool = False
    likely: str = _BOARD

    @property
    def other_driver(self) -> bool:
        """Whether the GPU only needs another driver: then this is why it did not start, whatever follows."""
        return self.likely == _OTHER_DRIVER


# keyed by the names in `facts.kernel_log.message_tables.DRIVER_MESSAGES`
MEANINGS: dict[str, MessageMeaning] = {
    "off-bus": MessageMeaning("hardware", "GPU has fallen off the bus", OWN_ADVICE[79], True),
    "wants-open-module": MessageMeaning(
        "watch",
        "this GPU needs NVIDIA's open kernel modules, and the proprietary ones are loaded",
        "Install the open kernel modules of this driver (packages nvidia-open, nvidia-driver-*-open), and reboot.",
        True,
        _OTHER_DRIVER,
    ),
    "wants-closed-module": MessageMeaning(
        "watch",
        "NVIDIA's open kernel modules are loaded, and do not support this GPU: it has no GSP",
        "Install the proprietary kernel modules of this driver instead of the open ones, and reboot.",
        True,
        _OTHER_DRIVER,
    ),
    "unsupported": MessageMeaning(
        "watch",
        "the installed driver release does not support this GPU",
        "Install a release that supports it: the README of each release lists the PCI ids of its GPUs.",
        True,
        _OTHER_DRIVER,
    ),
    "inaccessible": MessageMeaning("reset", "the GPU does not come back from a sleep or a reset", _RESET, True),
    "no-power-cable": MessageMeaning(
        "hardware",
        "the GPU's power cables are not connected",
        "Power the node off, connect the power cables of that GPU, and see that its supply is on.",
        True,
    ),
    "init-failed": MessageMeaning("reset", "the driver could not start the GPU: RmInitAdapter failed", _RESET, True),
    "gsp-boot": MessageMeaning("reset", "the GPU's own processor (GSP) does not boot", _RESET, True),
    "bar-invalid": MessageMeaning(
        "hardware",
        "the GPU has no valid memory window (BAR)",
        "In the BIOS turn on Above 4G Decoding, and Resizable BAR if there is one; or boot with pci=realloc.",
        True,
    ),
    "probe-failed": MessageMeaning("reset", "the driver's probe of a GPU failed", _RESET, True),
    "none-initialized": MessageMeaning("reset", "the driver started no GPU at all", _RESET, True),
    "reset-required": MessageMeaning("reset", "a GPU refuses work until it is reset", _RESET, True),
    "reset-advised": MessageMeaning("watch", "a GPU needs a reset", OWN_ADVICE[119]),
    "gsp-rpc-timeout": MessageMeaning("reset", "the GPU's own processor (GSP) did not answer", OWN_ADVICE[119], True),
    "gsp-timeout": MessageMeaning("watch", "no answer in time", OWN_ADVICE[119]),
}


def meaning(event: KernelEvent) -> MessageMeaning | None:
    """What an event of kind off-bus, gsp or rm means; None if it is no fault by itself."""
    # lazy: compiling the patterns takes 10 ms, which a log without errors does not need
    reported = kernel_lines.driver_words(event)
    row = driver_log.driver_message(reported)
    found = MEANINGS.get(row.name) if row else None
    if found is None or (not found.not_started and not _SICK.search(reported)):
        return MEANINGS["off-bus"] if event.kind == "off-bus" else None
    codes = _CODES.search(reported)
    return msgspec.structs.replace(found, words=f"{found.words} {codes[1]}") if codes else found


def not_started(node: Node) -> dict[str, MessageMeaning]:
    """Meanings by bus id of GPUs that the kernel log reports as failed to start or off the bus, if the driver
    does not show them."""
    shown = {gpu.bus_id for gpu in node.gpus if shown_by_driver(node, gpu)}
    found: dict[str, MessageMeaning] = {}
    started: dict[str, KernelEvent] = {}
    for event in known(node.kernel_log.events) or ():
        if event.bus_id is None or event.bus_id in shown:
            continue
        if event.kind == "xid" and event.code == 79:
            found.setdefault(event.bus_id, MEANINGS["off-bus"])
        elif (
            event.kind in ("off-bus", "gsp", "rm") and (reported := meaning(event)) is not None and reported.not_started
        ):
            before, first = found.get(event.bus_id), started.get(event.bus_id)
            if before is None or (
                # the reason may come after a message of the same attempt; a later attempt may be of another driver
                first is not None and (reported.other_driver if follows(event, first) else before.other_driver)
            ):
                found[event.bus_id], started[event.bus_id] = reported, event
    return found


def failed_starts(case: Case) -> Iterator[Finding]:
    """GPUs that are off the bus or did not start according to the kernel log, and that the driver does not show."""
    by_bus = {gpu.bus_id: gpu for gpu in case.node.gpus}
    # a log alone does not show which GPUs the driver shows now
    asked = bool(case.node.gpus) or known(case.node.driver.device_count) is not None
    so = ": the driver does not show it" if asked else ", the kernel log says"
    for bus_id, reported in not_started(case.node).items():
        events = [e for e in known(case.node.kernel_log.events) or () if e.bus_id == bus_id]
        reasons = [e for e in events if meaning(e) == reported]
        lines = reasons if reported.other_driver else events
        # what follows the reason may have pushed it out
        shown = lines[-2:] if not reasons or reasons[-1] in lines[-2:] else [reasons[-1], lines[-1]]
        board: list[Advice | str] = [
            Advice("Look whether it is on the bus at all.", f"lspci -s {bus_id} -vv"),
            "Still gone: reseat the GPU or its riser, then open a hardware case.",
        ]
        # an old card for the display beside GPUs that work is no fault of the node
        spare = reported.other_driver and any(shown_by_driver(case.node, gpu) for gpu in case.node.gpus)
        yield (warn if spare else fail)(
            of_gpu(by_bus[bus_id]) if bus_id in by_bus else Subject(kind="gpu", bus_id=bus_id),
            f"{reported.words}{so}",
            "every GPU on the bus starts with the driver",
            *log_lines(shown),
            likely=reported.likely,
            advice=[reported.advice, *([] if reported.other_driver else board)],
        )


def follows(event: KernelEvent, other: KernelEvent) -> bool:
    """Whether both may be of one attempt of the driver to start: a minute apart at most, or of unknown time."""
    return event.time_s is None or other.time_s is None or abs(event.time_s - other.time_s) <= _ATTEMPT_S


def events_not_judged(case: Case, kinds: Collection[str], why: str) -> Iterator[Finding]:
    """An `unknown` finding if the kernel log holds events of these kinds, which could not be judged: `why`."""
    log = case.node.kernel_log
    events: list[KernelEvent | HostEvent] = [*(known(log.events) or ()), *(known(log.host_events) or ())]
    # the kernel logs PKCS#7 of any module, and of the NVIDIA module also if it loads all the same
    if open_ones := [event for event in events if event.kind in kinds and not event.text.startswith("PKCS#7")]:
        yield unknown(
            NODE,
            f"the kernel log tells of something that could not be judged: {why}",
            *log_lines(open_ones[:3]),
            advice=("Paste the output of nvidia-smi -q beside it, or run gpudoctor check on the node.",),
        )


# Kernel log events of the host: what a kind means, and their age.


class EventMeaning(msgspec.Struct, frozen=True):
    """What events of a kind mean. `lasting`: they count since boot, others only within the last day."""

    words: str
    likely: str
    advice: tuple[Advice, ...]
    lasting: bool = False
    status: Status = Status.WARN


def age_s(case: Case, event: HostEvent) -> float | None:
    """Seconds since the event's last line; None if the log or the node has no time for it."""
    up_s = known(case.node.host.uptime_s)
    return None if up_s is None or event.last_s is None else max(0.0, up_s - event.last_s)


def is_recent(case: Case, event: HostEvent) -> bool:
    """Whether the event is at most a day old, or of unknown age, as in a saved log without times."""
    age = age_s(case, event)
    return age is None or age <= DAY_S


def count_a_day(event: HostEvent) -> float:
    """The event's lines within the day before its last one; if that was not counted, their mean over its days."""
    if event.count_last_day is not None:
        return event.count_last_day
    lasted_s = 0.0 if event.first_s is None or event.last_s is None else event.last_s - event.first_s
    return event.count / max(lasted_s / DAY_S, 1.0)
