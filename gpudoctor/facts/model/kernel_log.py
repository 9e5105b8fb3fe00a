"""Events from a kernel log: errors of GPUs and switches, and events of the machine around them. Data only."""

from typing import Literal

from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing

KernelEventKind = Literal[
    "xid", "sxid", "off-bus", "gsp", "aer", "iommu-fault", "pcie-bandwidth", "nvlink", "rm", "unclear", "gap"
]


class PcieLimit(Fact, frozen=True):
    """The kernel's boot message about a device behind a slower link: rates in Gb/s, speed in GT/s per lane."""

    at_bus_id: str
    available_gbit_s: float
    capable_gbit_s: float
    speed_gt_s: float
    width: int


class KernelEvent(Fact, frozen=True):
    """One kernel log line about a GPU, a switch or its link; `text` is the line itself.

    `code` is the Xid or SXid number. `fatal`: whether an SXid line is marked fatal. `bus_id` is in
    sysfs form, and None if the line does not contain it. `time_s` is seconds since boot. `caused_by` is the earlier
    Xid that an Xid names as its cause. `limit` comes with kind "pcie-bandwidth". Kind "unclear" is a line with the
    driver's message in a place where text from a user can appear; "gap" marks lines that were overwritten before they
    could be read.
    """

    kind: KernelEventKind
    text: str
    code: int | None = None
    bus_id: str | None = None
    time_s: float | None = None
    fatal: bool | None = None
    caused_by: int | None = None
    limit: PcieLimit | None = None


HostEventKind = Literal[
    "machine-check",
    "machine-check-fatal",
    "memory-corrected",
    "memory-uncorrected",
    "soft-lockup",
    "hard-lockup",
    "rcu-stall",
    "hung-task",
    "oom-kill",
    "nfs-timeout",
    "nfs-ok",
    "io-error",
    "read-only",
    "nic-power",
    "nic-firmware",
    "nic-link-down",
    "nic-link-up",
    "nic-cable",
    "nic-temperature",
    "signature-rejected",
    "other-kernel",
    "other-driver",
    "other-gpu",
]


class HostEvent(Fact, frozen=True):
    """An event of the machine around the GPUs: kernel log lines of one kind and device, merged.

    `count` is their number, or that of the errors if each line says how many it stands for (EDAC); of links, that of
    the adapter's interface with the most.

    `device` is what the line names: the bus id of a network adapter or another PCI function in sysfs form, a disk, an
    NFS server, a CPU; None if none. `text` is the last of the messages, without the log's prefixes; `first_s` and
    `last_s` are the times of the first and the last, in seconds since boot. `count_last_day` are the lines within the
    day before the last one; None if the log has no times.
    """

    kind: HostEventKind
    text: str
    device: str | None = None
    count: int = 1
    first_s: float | None = None
    last_s: float | None = None
    count_last_day: int | None = None


class ApiMismatch(Fact, frozen=True):
    """The versions of a program's driver library and of the kernel module that refused it, as the module logs them."""

    library: str
    module: str


class KernelLog(Fact, frozen=True):
    """Kernel log lines since boot that matter here. `source` is where they were read.

    `truncated`: lines since boot (or since the driver was loaded) are missing; `gap`: which and why.
    `starts_s`: seconds since boot of the first line, if those before it were lost. `quoted`: the number of lines that
    were skipped because the driver's message appears in them inside a user's text (the name of a program or file).
    `forgeable`: nothing shows which lines are the kernel's own, so a user could have written events.
    `host_events` are those of the machine itself. `api_mismatch` is the last one that the module logged; the
    library's version in it comes from the program, so any user can choose it.
    """

    events: tuple[KernelEvent, ...] | Missing = NOT_READ
    source: str | Missing = NOT_READ
    truncated: bool = False
    gap: str | None = None
    starts_s: float | None = None
    quoted: int = 0
    forgeable: bool = False
    host_events: tuple[HostEvent, ...] | Missing = NOT_READ
    api_mismatch: ApiMismatch | None = None
