"""Kernel log lines that speak of a GPU, an NVSwitch or a PCIe link -> events. Pure: text in, facts out."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gpudoctor.facts.missing import Missing
from gpudoctor.facts.node import KernelEvent, KernelEventKind, KernelLog, short_bus_id

MAX_EVENTS = 10_000
# A flood of one message must not push out the one that matters: of each kind, code and device this many are kept
MAX_REPEATS = 100
_MAX_LINE = 2000

_BUS_ID = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_FULL_BUS_ID = re.compile(
    r"(?<![0-9a-fA-F])[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?(?!\.?[0-9a-fA-F])"
)
# A word that every line of interest has: most lines are thrown away by this alone
_MARK = re.compile(r"NVRM: |SXid|AER: |PCIe Bus Error|DPC: |available PCIe bandwidth")
# A daemon that quotes the kernel (Nov 14 07:00:14 node12 gpu-agent[812]: saw NVRM: Xid ...) is not the kernel
_DAEMON = re.compile(r"\w\[\d+\]: ")
_MONOTONIC = re.compile(r"\[ *(\d{1,10}\.\d{1,9})\]")
_KMSG = re.compile(r"\d{1,5},\d{1,19},(\d{1,19}),[^;]{0,80};")

# NVRM: Xid (PCI:0000:05:00): 79, ...    NVRM: Xid (PCI:0000:05:00 GPU-I:03): 13, ...    NVRM: Xid (0000:03:00): 31, ...
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({_BUS_ID})[^)]*\): (\d{{1,6}})\b")
# nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 ...; lines of severity and data follow it
_SXID = re.compile(rf"SXid \(PCI:({_BUS_ID})\): (\d{{1,6}})\b(?:, (\w[\w-]*))?")
_SXID_DETAIL = ("severity", "data")
_OFF_BUS = re.compile(r"fallen off the bus|GPU lost from the bus|NV_ERR_GPU_IS_LOST")
# The driver's three lines at boot; the GPU is named in the first, the fault in the last
_INSTALLED_GPU = re.compile(rf"The NVIDIA GPU ({_BUS_ID})")
_INSTALLED_LOST = "fallen off the bus and is not responding"
_INSTALLED_OTHER = "not supported by"
_GSP = re.compile(r"timed? ?out|heartbeat|likely needs to be reset", re.IGNORECASE)
_RM = re.compile(r"NV_ERR_RESET_REQUIRED|RmInitAdapter failed|rm_init_adapter failed|needs? (?:to be|a) reset")
_FAILED = re.compile(r"\bfail(?:ed|ure)?\b", re.IGNORECASE)
_AER = re.compile(
    r"AER: [^:]{0,60}error (?:message )?received|PCIe Bus Error: severity="
    r"|AER: device recovery failed|DPC: containment event"
)
_AER_SOURCE = re.compile(rf"received(?: from|:) ({_BUS_ID})")
_BANDWIDTH = "available PCIe bandwidth, limited by"


def parse_kernel_lines(lines: Iterable[str]) -> tuple[KernelEvent, ...]:
    """The events in kernel log lines, in their order.

    Takes dmesg (`[  123.456]` and `[Thu Nov 14 ...]`), syslog and journalctl lines, raw /dev/kmsg
    records, and anything else without complaint. Bus ids come out in sysfs' form (function 0 where
    the line names none). `time_s` is known where the line counts from boot. At most `MAX_EVENTS`
    are kept, and `MAX_REPEATS` of a kind, code and device: the first ones, and the last.
    """
    return _collect(lines)[0]


def read_kernel_text(text: str, source: str) -> KernelLog:
    """A captured kernel log as facts; `truncated` says that repeats were left out.

    Text without any line, or with dmesg's complaint instead, is no kernel log: its events are Missing.
    """
    if not text.strip():
        return KernelLog(events=Missing(f"{source} is empty", "absent"), source=source)
    if text.lstrip().startswith("dmesg: ") and "not permitted" in text[:200]:
        return KernelLog(events=Missing(f"{source}: no permission to read the kernel log", "denied"), source=source)
    events, truncated = _collect(text.splitlines())
    return KernelLog(events=events, source=source, truncated=truncated)


def _collect(lines: Iterable[str]) -> tuple[tuple[KernelEvent, ...], bool]:
    kept: dict[tuple[str, int | None, str | None], list[tuple[int, KernelEvent]]] = {}
    total, truncated = 0, False
    named_at_boot: str | None = None
    for number, raw in enumerate(lines):
        if not _MARK.search(raw):
            continue
        line = raw[:_MAX_LINE].strip()
        if installed := _INSTALLED_GPU.search(line):
            named_at_boot = _sysfs_bus_id(installed[1])
        event = parse_line(line)
        if _INSTALLED_LOST in line and event is not None and event.bus_id is None:
            event = msgspec.structs.replace(event, bus_id=named_at_boot)
        if _INSTALLED_LOST in line or _INSTALLED_OTHER in line:
            named_at_boot = None
        if event is None:
            continue
        key = (event.kind, event.code, event.bus_id)
        same = kept.get(key, [])
        if len(same) >= MAX_REPEATS:
            same[-1] = (number, event)
            truncated = True
        elif total >= MAX_EVENTS:
            truncated = True
        else:
            kept.setdefault(key, same).append((number, event))
            total += 1
    ordered = sorted((item for same in kept.values() for item in same), key=lambda item: item[0])
    return tuple(event for _, event in ordered), truncated


def parse_line(line: str) -> KernelEvent | None:
    """The event in one line, or None. A fault that the driver spreads over lines needs `parse_kernel_lines`."""
    mark = _MARK.search(line)
    if mark is None or (_DAEMON.search(before := line[: mark.start()]) and "kernel: " not in before):
        return None
    if xid := _XID.search(line):
        return _event("xid", line, bus_id=xid[1], code=int(xid[2]))
    if sxid := _SXID.search(line):
        word = (sxid[3] or "").lower()
        if word in _SXID_DETAIL:
            return None
        fatal = {"fatal": True, "non-fatal": False}.get(word)
        return _event("sxid", line, bus_id=sxid[1], code=int(sxid[2]), fatal=fatal)
    if _AER.search(line):
        source = _AER_SOURCE.search(line)
        event = _event("aer", line, bus_id=source[1] if source else None)
        return event if event.bus_id else None
    if _BANDWIDTH in line:
        return _event("pcie-bandwidth", line)
    kind = _driver_message_kind(line.partition("NVRM: ")[2])
    return _event(kind, line) if kind else None


def _driver_message_kind(message: str) -> KernelEventKind | None:
    """What the driver's own words speak of, where they carry no Xid."""
    if _OFF_BUS.search(message):
        return "off-bus"
    if _GSP.search(message) and ("GSP" in message or "eartbeat" in message):
        return "gsp"
    if "nvlink" in message.lower() and _FAILED.search(message):
        return "nvlink"
    return "rm" if _RM.search(message) else None


def _event(
    kind: KernelEventKind, line: str, bus_id: str | None = None, code: int | None = None, fatal: bool | None = None
) -> KernelEvent:
    if bus_id is None and (named := _FULL_BUS_ID.search(line)):
        bus_id = named[0]
    return KernelEvent(
        kind=kind,
        text=line,
        code=code,
        bus_id=_sysfs_bus_id(bus_id) if bus_id else None,
        time_s=_time_s(line),
        fatal=fatal,
    )


def _sysfs_bus_id(text: str) -> str:
    """Kernel messages leave out the domain or the function at times.

    >>> _sysfs_bus_id("00000000:BB:00"), _sysfs_bus_id("03:00.1")
    ('0000:bb:00.0', '0000:03:00.1')
    """
    return short_bus_id(text if "." in text else f"{text}.0")


def _time_s(line: str) -> float | None:
    """Seconds since boot, of dmesg, journalctl -o short-monotonic and /dev/kmsg (microseconds there)."""
    if record := _KMSG.match(line):
        return int(record[1]) / 1e6
    mark = _MARK.search(line)
    stamp = _MONOTONIC.search(line[: mark.start()] if mark else line)
    return float(stamp[1]) if stamp else None
