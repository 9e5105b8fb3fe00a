"""Parse one kernel message about a GPU, an NVSwitch or a PCIe link. Pure: text in, event out.

A message counts if it begins as the kernel module writes it. A user can only put the name of a process at the start of
a message, at most 15 bytes long (TASK_COMM_LEN in the kernel's sched.h) and followed by the process id: that is too
short for an Xid, SXid or AER line.
"""

from __future__ import annotations

import re

import msgspec

from gpudoctor.facts.kernel_log.message_tables import driver_message
from gpudoctor.facts.model.driver import KernelEvent, KernelEventKind, PcieLimit
from gpudoctor.facts.model.node import short_bus_id
from gpudoctor.lazy import lazy_pattern

# Every line of interest contains one of these; this check discards most lines
WORDS = (
    *("NVRM: ", "SXid", "AER: ", "PCIe Bus Error", "DPC: ", "available PCIe bandwidth"),
    *("[IO_PAGE_FAULT ", "DMAR: [DMA ", "DMAR:[DMA "),
    *("nvidia: probe of ", "probe with driver nvidia", "inaccessible", "; giving up"),
)
MARK = lazy_pattern("|".join(map(re.escape, WORDS)))
# Must not be lost, wherever it is in a line
HARD_WORDS = lazy_pattern(r"NVRM: Xid \(|^NVRM: Xid|SXid \(|NVRM: .{0,200}fallen off the bus")
LOADING = "NVRM: loading NVIDIA UNIX"
API_MISMATCH = "NVRM: API mismatch: "
# a line end inside a message: as it is, as the kernel and journald write it, as rsyslog does
_NEXT_LINE = lazy_pattern(r" *(?:\n|\\x0a|#012) *(?:NVRM: +)?")
# The driver's two or three lines at boot; the first contains the GPU, and one of the next the fault
INSTALLED_FAULT = lazy_pattern(
    "fallen off the bus and is not responding|not supported by|requires use of the NVIDIA open"
)

_BYTE = r"(?:\\x[0-9a-f]{2}|.)"  # an unprintable byte is four characters in /dev/kmsg
_BUS_ID = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_FUNCTION = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_FULL_BUS_ID = lazy_pattern(
    r"(?<![0-9a-fA-F])[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?(?!\.?[0-9a-fA-F])"
)
_INSTALLED_GPU = lazy_pattern(rf"NVRM: The NVIDIA GPU ({_BUS_ID})")
# NVRM: Xid (PCI:0000:05:00): 79, ...    NVRM: Xid (PCI:0000:05:00 GPU-I:03): 13, ...    NVRM: Xid (0000:03:00): 31, ...
# People hide the bus id before they paste: PCI:xxxx:xx:00, PCI:0000:**:00, <redacted>. It must be longer than the rest
# of a process name's 15 bytes: a process named "NVRM: Xid (): 7" is not an Xid
_HIDDEN = r"[<\[]?[0-9A-Za-z:.*?#_-]{4,24}[>\]]?"
_XID = lazy_pattern(rf"NVRM: Xid \((?:PCI:)?(?:({_BUS_ID})[^)]*|{_HIDDEN})\): (\d{{1,6}})\b(?:, )?")
_PROCESS = lazy_pattern(r"pid=[^,]{0,20}(?:, |$)")
# a name may contain commas: it ends at the last comma within its 15 bytes
_NAME = lazy_pattern(rf"name=(?:{_BYTE}{{0,15}}, |[^,]*(?:, |$))")
# nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 ...; followed by lines with severity and data
_SXID = lazy_pattern(rf"nvidia-nvswitch\d{{0,3}}: SXid \(PCI:({_BUS_ID})\): (\d{{1,6}})\b(?:, (\w[\w-]*))?")
_SXID_DETAIL = ("severity", "data")
_CODED = lazy_pattern(r"NVRM: Xid|nvidia-nvswitch\d{0,3}: SXid")
# nvidia: probe of 0000:b3:00.0 failed with error -1; nvidia 0000:b3:00.0: probe with driver nvidia failed with error -1
_PROBE = lazy_pattern(rf"nvidia(?:: probe of ({_FUNCTION})| ({_FUNCTION}): probe with driver nvidia) failed with error")
# drivers/pci/pci.c, of a device that does not come back from a sleep or a reset: its registers read nothing but ones
_INACCESSIBLE = lazy_pattern(
    rf"nvidia ({_FUNCTION}): "
    r"(?:(?:Unable to|can't) change power state from \w{1,8} to D0,? \(?(?:config space|device) inaccessible"
    r"|not ready \d{1,8}ms after [\w ]{1,30}; giving up)"
)
_PREVIOUS = lazy_pattern(r"caused by previous Xid (\d{1,6})\b")
_AER = lazy_pattern(
    rf"[\w.-]{{1,32}} ({_FUNCTION}): (?:AER: [^:]{{0,60}}error (?:message )?received(?:(?: from|:) ({_BUS_ID}))?"
    r"|PCIe Bus Error: severity=|AER: device recovery failed|DPC: containment event)"
    # of the kernel, about a device whose driver has no handler for errors
    rf"|nvidia (?P<unrecovered>{_FUNCTION}): AER: can't recover"
)
# drivers/iommu/amd/iommu.c: nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=..., or without a driver
# AMD-Vi: Event logged [IO_PAGE_FAULT device=07:00.0 ...; drivers/iommu/intel/dmar.c: DMAR: [DMA Write NO_PASID] Request
# device [0000:07:00.0] fault addr ..., most often without the domain
_IOMMU_FAULT = lazy_pattern(
    rf"(?:[\w.-]{{1,32}} ({_FUNCTION}): )?AMD-Vi: Event logged \[IO_PAGE_FAULT (?:device=({_BUS_ID}))?"
    rf"|(?:dmar: )?DMAR: ?\[DMA [\w ]{{1,24}}\] Request device \[({_BUS_ID})\].{{0,24}} fault addr "
)
_BANDWIDTH = lazy_pattern(
    rf"[\w.-]{{1,32}} ({_FUNCTION}): (\d{{1,6}}(?:\.\d{{1,4}})?) Gb/s available PCIe bandwidth, limited by"
    rf"(?: (\d{{1,3}}(?:\.\d)?) GT/s (?:PCIe )?x(\d{{1,2}}) link at ({_FUNCTION})"
    r" \(capable of (\d{1,6}(?:\.\d{1,4})?) Gb/s)?"
)
# NAME[77]: segfault at ..., NAME (77): drop_caches: 3, NAME/77: potentially unexpected fatal signal 11, NAME invoked
# oom-killer
_NAME_FIRST = lazy_pattern(
    rf"{_BYTE}{{1,15}}(?:\[\d{{1,10}}\]| ?\(\d{{1,10}}\)|/\d{{1,10}}:"
    r"|: page allocation failure| invoked oom-killer| uses )"
)
# Messages that contain a user's text further on: names of programs, files, cgroups, labels, devices, and the version
# that a program passed to the driver by ioctl
_HOLDS_A_NAME = lazy_pattern(
    rf"{API_MISMATCH}|traps: |audit: |audit\(|oom-kill:|oom_reaper: |Out of memory: |Memory cgroup |Killed process "
    r"|Tasks? in |\[ *\d{1,10}\] +\d|INFO: task |INFO: rcu_|task:|watchdog: |CPU: \d|process '|warning: |program "
    r"|ptrace attach |usb \d|input: |hid-|scsi |sd |overlayfs: |EXT[234]-fs |XFS |BTRFS|FAT-fs |NFS: |nfs: |CIFS: "
    r"|device-mapper: "
)


def parse_message(message: str) -> KernelEvent | None:
    """The event in a message, with the message as its text; None if there is none.

    If the driver spreads a fault over three messages (`installed_gpu`), the event is in the last one, which does not
    contain the GPU.
    """
    if xid := _XID.match(message):
        cause = _PREVIOUS.search(words_of_xid(message))
        event = _event("xid", message, bus_id=xid[1], code=int(xid[2]), named=False)
        return msgspec.structs.replace(event, caused_by=int(cause[1])) if cause else event
    if sxid := _SXID.match(message):
        word = (sxid[3] or "").lower()
        if word in _SXID_DETAIL:
            return None
        fatal = {"fatal": True, "non-fatal": False}.get(word)
        return _event("sxid", message, bus_id=sxid[1], code=int(sxid[2]), fatal=fatal)
    if aer := _AER.match(message):
        return _event("aer", message, bus_id=aer[2] or aer[1] or aer["unrecovered"])
    if refused := _IOMMU_FAULT.match(message):
        bus_id = refused[1] or refused[2] or refused[3]
        return _event("iommu-fault", message, bus_id=bus_id, named=False) if bus_id else None
    if bandwidth := _BANDWIDTH.match(message):
        event = _event("pcie-bandwidth", message, bus_id=bandwidth[1])
        return msgspec.structs.replace(event, limit=_limit(bandwidth))
    if probe := _PROBE.match(message):
        return _event("rm", message, bus_id=probe[1] or probe[2])
    if inaccessible := _INACCESSIBLE.match(message):
        return _event("rm", message, bus_id=inaccessible[1])
    row = driver_message(in_one_line(message)) if is_drivers(message) else None
    return _event(row.kind, message) if row else None


def in_one_line(message: str) -> str:
    """A message of the driver of several lines as one line, without the driver's name on each of them.

    >>> in_one_line("NVRM: installed in this system is#012NVRM:  not supported by open")
    'NVRM: installed in this system is not supported by open'
    """
    return _NEXT_LINE.sub(" ", message)


def is_drivers(message: str) -> bool:
    """Whether the message is from the driver, not from a process with a similar name, and contains no user's text."""
    return message.startswith("NVRM: ") and not message.startswith(API_MISMATCH) and not _NAME_FIRST.match(message)


def may_go_on(message: str) -> bool:
    """Whether further lines of the message are from the driver too; those of an Xid may be a user's text."""
    return is_drivers(message) and not message.startswith("NVRM: Xid")


def begins_coded(message: str) -> bool:
    """Whether it begins as an Xid or SXid, even if it cannot be parsed (a hidden bus id, a truncated line)."""
    return _CODED.match(message) is not None and not _NAME_FIRST.match(message)


def is_sxid(message: str) -> bool:
    """Whether it is a complete SXid line, including the lines with details."""
    return _SXID.match(message) is not None


def sxid_detail(message: str) -> KernelEvent | None:
    """The SXid that a line with details belongs to; the line before it says whether it is fatal."""
    sxid = _SXID.match(message)
    if sxid is None or (sxid[3] or "").lower() not in _SXID_DETAIL:
        return None
    return _event("sxid", message, bus_id=sxid[1], code=int(sxid[2]))


def holds_a_name(message: str) -> bool:
    """Whether it is a kernel message about something that users name: a process, a file, a device."""
    return bool(_HOLDS_A_NAME.match(message) or _NAME_FIRST.match(message))


def installed_gpu(message: str) -> str | None:
    """The bus id in the first of the driver's three lines at boot, or None."""
    found = _INSTALLED_GPU.match(message)
    return _sysfs_bus_id(found[1]) if found else None


def words_of_xid(message: str) -> str:
    """The driver's text in an Xid line without the name of the process; any other message unchanged.

    >>> words_of_xid("NVRM: Xid (PCI:0000:05:00): 149, pid=7, name=a, Nonfatal, NETIR_LINK_EVT Fatal XC0")
    'NETIR_LINK_EVT Fatal XC0'
    """
    xid = _XID.match(message)
    if xid is None:
        return message
    text = message[xid.end() :]
    for part in (_PROCESS, _NAME):
        if found := part.match(text):
            text = text[found.end() :]
    return text


def _limit(bandwidth: re.Match[str]) -> PcieLimit | None:
    """The limiting link; None if the kernel does not know it ("Unknown x0 link")."""
    if bandwidth[6] is None:
        return None
    at = _sysfs_bus_id(bandwidth[5])
    return PcieLimit(at, float(bandwidth[2]), float(bandwidth[6]), float(bandwidth[3]), int(bandwidth[4]))


def _event(
    kind: KernelEventKind,
    message: str,
    bus_id: str | None = None,
    code: int | None = None,
    fatal: bool | None = None,
    named: bool = True,
) -> KernelEvent:
    """Build an event. `named`: the bus id may be anywhere in the message."""
    if bus_id is None and named and (found := _FULL_BUS_ID.search(message)):
        bus_id = found[0]
    return KernelEvent(kind, message, code, _sysfs_bus_id(bus_id) if bus_id else None, fatal=fatal)


def _sysfs_bus_id(text: str) -> str:
    """The bus id in sysfs' form: kernel messages sometimes omit the domain or the function.

    >>> _sysfs_bus_id("00000000:BB:00"), _sysfs_bus_id("03:00.1")
    ('0000:bb:00.0', '0000:03:00.1')
    """
    return short_bus_id(text if "." in text else f"{text}.0")
