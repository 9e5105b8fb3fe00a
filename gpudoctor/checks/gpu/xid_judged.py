"""What each kernel log error of one GPU means: its bucket, text and advice."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gpudoctor.checks.core.driver_messages import MessageMeaning, follows, meaning
from gpudoctor.checks.core.each_gpu import untrusted
from gpudoctor.facts.model.driver import KernelEvent
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.lazy import lazy_imports, lazy_pattern
from gpudoctor.statements.xids import BUCKETS, LINK_CODES, RECOVERY, Bucket, xid

with lazy_imports():  # compiling the patterns takes 10 ms (-X importtime), which a log without errors does not need
    from gpudoctor.facts.kernel_log import lines as kernel_lines

# Details in the numbers of an Xid line: the registers of Xid 74, the units of NVLink 5.

# NVIDIA, "Xid and SXid errors": registers of Xid 74 (numbered from 1), bits (from the lowest), meaning of each bit
_PARITY = "ECC or parity error inside: a part that fails if it comes more than twice"
_MECHANICAL = "perhaps the contact: check the link's mechanical connection, reseat"
_FOLLOWS = "follows from another error"
_REPEATS = "matters if it comes again"
XID_74_BITS: tuple[tuple[int, tuple[int, ...], str], ...] = (
    (1, (4, 5), _PARITY),
    (1, (21, 22), "marginal signal: check the link's mechanical connection"),
    (1, (8, 9, 12, 16, 17, 24, 28), _MECHANICAL),
    (1, (1, 20), _FOLLOWS),
    (1, (27, 29), _REPEATS),
    (3, (0, 1, 2, 6), _PARITY),
    (3, (13,), "never seen in production: report it"),
    (3, (16, 17, 18, 19), _REPEATS),
    (4, (16, 17, 18), _FOLLOWS),
    (5, (18, 19, 21, 22, 24, 25, 27, 28), _PARITY),
    (5, (20, 23, 26, 29), "many corrected errors, nothing lost"),
)
# The unit of the NVLink 5 controller that each code concerns; source: NVIDIA's Xid catalogue
NVLINK5_UNITS = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW_CTRL", 149: "NETIR", 150: "MSE"}
# a fatal NVLink 5 error ends a program's channels (Xid 45), a non-fatal one does not
CHANNEL_REMOVED = 45
# the recovery action that the GPU requests changed
RECOVERY_CHANGED = 154

_REGISTERS = lazy_pattern(r"on link (\d{1,2}) ?\((0x[0-9a-f]{1,8}(?:, ?0x[0-9a-f]{1,8}){0,6})", re.IGNORECASE)
_STATUS = lazy_pattern(r"\bLink (-?\w{1,4}) \((0x[0-9a-f]{1,8})|\((0x[0-9a-f]{8})\b", re.IGNORECASE)
# "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
_RECOVERY = lazy_pattern(
    r"GPU recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x([0-9a-f]+) \(([^)]*)\)", re.IGNORECASE
)
_NON_FATAL = lazy_pattern(r"\bnon-?fatal\b", re.IGNORECASE)
_FATAL = lazy_pattern(r"\bfatal\b", re.IGNORECASE)


def nvlink_detail(code: int, text: str) -> str | None:
    """The details in the numbers of an NVLink Xid line, as text; None if it has none.

    >>> nvlink_detail(74, "NVLink: fatal error detected on link 6(0x200000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")
    "link 6: marginal signal: check the link's mechanical connection (register 1, bit 21)"
    >>> nvlink_detail(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0 0x0 0x0 0x0 0x0)")
    'NETIR, link 8, subcode 4'
    """
    if code == 74:
        return _registers(text)
    unit = NVLINK5_UNITS.get(code)
    found = _STATUS.search(text) if unit else None
    if unit is None or found is None:
        return unit
    link = f", link {int(found[1])}" if found[1] and found[1].isdecimal() else ""
    # nvidia's open kernel module: bits 20 to 25 of the first status word are the subcode
    return f"{unit}{link}, subcode {int(found[2] or found[3], 16) >> 20 & 0x3F}"


def _registers(output: str) -> str | None:
    found = _REGISTERS.search(output)
    if found is None:
        return None
    values = [int(word, 16) for word in found[2].replace(" ", "").split(",")]
    reported: dict[str, list[str]] = {}
    for register, bits, text in XID_74_BITS:
        value = values[register - 1] if register <= len(values) else 0
        for bit in bits:
            if value >> bit & 1:
                reported.setdefault(text, []).append(f"register {register}, bit {bit}")
    if not reported:
        return f"link {found[1]}: registers {' '.join(found[2].replace(' ', '').split(','))}"
    return f"link {found[1]}: " + "; ".join(f"{text} ({', '.join(places)})" for text, places in reported.items())


class ClassifiedEvent(msgspec.Struct, frozen=True):
    """A kernel event with its bucket in this context, and its meaning."""

    event: KernelEvent
    bucket: Bucket
    words: str
    advice: str
    likely: str | None = None


def judge_events(events: Iterable[KernelEvent], gpu: Gpu | None, starts: bool = True) -> list[ClassifiedEvent]:
    """Classify the events, worst first, and downgrade those that a reset has settled since.

    The last Xid 154 decides: a change to "(None)" settles everything before it. Without one, resettable errors are
    settled if the GPU itself now requests no recovery.
    """
    events = tuple(events)
    settled_before = max(
        (i for i, e in enumerate(events) if e.code == RECOVERY_CHANGED and _target(e) == 0), default=-1
    )
    refusals = [event for event in events if (reported := _meaning(event)) is not None and reported.other_driver]
    judged = []
    for position, event in enumerate(events):
        item = _classify(event, gpu, starts)
        # a driver that does not support the GPU goes on to report that it could not start it
        refused = event.kind != "off-bus" and start_failed(event) and any(follows(event, one) for one in refusals)
        if item is None or (refused and item.likely is None):
            continue
        judged.append(_settled(item, gpu) if _is_settled(item, gpu, position < settled_before) else item)
    # among equally bad ones, those that a bad link cannot explain come first: core/faults.py looks at the first
    return sorted(judged, key=lambda item: (BUCKETS.index(item.bucket), item.event.code in LINK_CODES))


def _is_settled(item: ClassifiedEvent, gpu: Gpu | None, all_settled: bool) -> bool:
    """Whether nothing is left to do: by a later Xid 154, or for resettable errors by the GPU itself."""
    if item.bucket not in ("reset", "hardware"):
        return False
    is_fit = gpu is not None and not untrusted(gpu) and known(gpu.recovery_action) == "none"
    return all_settled or (item.bucket == "reset" and is_fit)


def _settled(item: ClassifiedEvent, gpu: Gpu | None) -> ClassifiedEvent:
    since = "the GPU asks for no reset, but a link is down" if _link_down(item, gpu) else "settled since"
    return msgspec.structs.replace(item, bucket="watch", words=f"{item.words} ({since})")


def _link_down(item: ClassifiedEvent, gpu: Gpu | None) -> bool:
    """Whether this is an error of a link, and a link of the GPU is down: then nothing is settled.

    Only the words depend on it, as a GPU may have links that lead nowhere: nvlink.links judges them.
    """
    links = known(gpu.nvlinks) if gpu is not None else None
    return item.event.code in LINK_CODES and any(link.state == "inactive" for link in links or ())


def _target(event: KernelEvent) -> int | None:
    found = _RECOVERY.match(kernel_lines.driver_words(event))
    return int(found[1], 16) if found else None


def _classify(event: KernelEvent, gpu: Gpu | None, starts: bool) -> ClassifiedEvent | None:
    """The event with its bucket; None if it is a line of the driver that means nothing for the GPU."""
    if event.kind != "xid":
        return _classify_message(event, gpu, starts)
    if event.code is None:
        return ClassifiedEvent(event, "unknown", "an Xid without a code", xid(0).advice)
    if event.code == RECOVERY_CHANGED:
        return _recovery_changed(event)
    if event.code == CHANNEL_REMOVED and event.caused_by is not None and event.caused_by != event.code:
        return _caused(event, event.caused_by)
    entry, message = xid(event.code), kernel_lines.driver_words(event)
    if event.code == 63 and "reset gpu to activate" in message.lower() and not _activated(gpu):
        return ClassifiedEvent(event, "watch", "a memory row is to be replaced, which takes a reset", entry.advice)
    if event.code == 94 and not _activated(gpu):
        # it was an uncorrectable error: a row may be waiting to be remapped
        return ClassifiedEvent(event, "watch", entry.words, entry.advice)
    return _by_table(event, event.code, message)


def _classify_message(event: KernelEvent, gpu: Gpu | None, starts: bool) -> ClassifiedEvent | None:
    means = meaning(event)
    if means is None:
        return None
    # a GPU that the driver shows has started since
    started = starts and means.not_started and event.kind != "off-bus" and gpu is not None and not untrusted(gpu)
    likely = means.likely if means.other_driver else None
    return ClassifiedEvent(event, "watch" if started else means.bucket, means.words, means.advice, likely)


def _recovery_changed(event: KernelEvent) -> ClassifiedEvent:
    entry = xid(RECOVERY_CHANGED)
    found = _RECOVERY.match(kernel_lines.driver_words(event))
    if found is None:
        return ClassifiedEvent(event, "unknown", f"{entry.words}, but the line does not say to what", entry.advice)
    action = int(found[1], 16)
    if action == 0:
        return ClassifiedEvent(event, "info", entry.words, entry.advice)
    advice = RECOVERY[action][1] if action in RECOVERY else entry.advice
    # drain-p2p (3) only needs care, the others make the GPU unfit
    return ClassifiedEvent(event, "watch" if action == 3 else "reset", f"the GPU asks for: {found[2]}", advice)


def _by_table(event: KernelEvent, code: int, message: str) -> ClassifiedEvent:
    """By the table of codes, with the details that the line of a link error has."""
    entry = xid(code)
    bucket, text = entry.bucket, entry.words
    if code in NVLINK5_UNITS:
        if event.fatal is False or _NON_FATAL.search(message):
            bucket, text = "info", f"{text}, non-fatal"
        elif event.fatal or _FATAL.search(message):
            bucket, text = "reset", f"{text}, fatal"
    if detail := nvlink_detail(code, message):
        text = f"{text} ({detail})"
    return ClassifiedEvent(event, bucket, text, entry.advice if bucket == entry.bucket else xid(74).advice)


def _activated(gpu: Gpu | None) -> bool:
    """Whether the GPU reports that no row remapping is pending."""
    return gpu is not None and not untrusted(gpu) and known(gpu.memory_repair.remap_pending) is False


def _caused(event: KernelEvent, code: int) -> ClassifiedEvent:
    """Classify an Xid that names an earlier one as its cause by that one's code, even if its own line is missing."""
    cause = xid(code)
    # non-fatal NVLink 5 errors remove no channels
    bucket: Bucket = "reset" if code in NVLINK5_UNITS else cause.bucket
    advice = xid(74).advice if code in NVLINK5_UNITS else cause.advice
    unit = f" ({NVLINK5_UNITS[code]})" if code in NVLINK5_UNITS else ""
    return ClassifiedEvent(
        event, bucket, f"a program's channels were removed by Xid {code}: {cause.words}{unit}", advice
    )


def start_failed(event: KernelEvent) -> bool:
    reported = _meaning(event)
    return reported is not None and reported.not_started


def _meaning(event: KernelEvent) -> MessageMeaning | None:
    return meaning(event) if event.kind != "xid" else None
