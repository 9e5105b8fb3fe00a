"""The tables of the kernel's messages that matter: the NVIDIA driver's (except Xids), and those about the host.

Every row of `HOST_MESSAGES` is matched from the first character of a message. These messages may contain a name that
a user chose (of a process, of a file), but none begins with one.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

import msgspec

from gpudoctor.facts.model.driver import HostEventKind, KernelEventKind
from gpudoctor.facts.model.node import short_bus_id

DriverMessageName = Literal[
    "off-bus",
    "wants-open-module",
    "wants-closed-module",
    "unsupported",
    "inaccessible",
    "no-power-cable",
    "init-failed",
    "gsp-boot",
    "bar-invalid",
    "probe-failed",
    "none-initialized",
    "reset-required",
    "reset-advised",
    "gsp-rpc-timeout",
    "gsp-timeout",
    "nvlink",
]
_BUS = r"(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_NIC = rf"(?:mlx5_core|mlx4_core|mlx4_en|bnxt_en|ice|i40e|ixgbe|igb|ena|qede|be2net) {_BUS}"
_OF_NIC = r"(?: (?P<interface>\S{1,40}))?"
_DISK = r"(?P<device>(?!(?:fd|sr|loop|ram|zram)\d)[\w-]{1,40})"
# compiled when a message first needs it; faster than the cache of `re`
_compiled = cache(re.compile)


class DriverMessage(msgspec.Struct, frozen=True):
    """One row of the table: a message that contains `pattern` is of this `kind`; `source` prints it."""

    name: DriverMessageName
    kind: KernelEventKind
    pattern: str
    source: str


# The first matching row counts
DRIVER_MESSAGES: tuple[DriverMessage, ...] = (
    DriverMessage("off-bus", "off-bus", "fallen off the bus|GPU lost from the bus|NV_ERR_GPU_IS_LOST",
        "nv.c, osinit.c, nv-pci.c"),
    DriverMessage("wants-open-module", "rm", "requires use of the NVIDIA open", "nv.c, nv-pci.c"),
    DriverMessage("wants-closed-module", "rm", "is not supported by open", "nv-pci.c of the open kernel modules"),
    DriverMessage("unsupported", "rm",
        "installed in this system is not supported by|is not supported by the NVIDIA"
        "|supported through the NVIDIA .{1,40} Legacy drivers", "nv-pci.c"),
    DriverMessage("inaccessible", "rm", r"(?:device|config space) inaccessible|not ready \d+ms .{1,30}; giving up",
        "drivers/pci/pci.c"),
    DriverMessage("no-power-cable", "rm", "does not have the necessary power cables connected", "osinit.c"),
    DriverMessage("init-failed", "rm", r"RmInitAdapter failed|rm_init_adapter failed", "osinit.c, nv.c"),
    DriverMessage("gsp-boot", "gsp",
        r"unexpected WPR2 already up|GSP firmware RM|cannot bootstrap riscv/gsp"
        r"|[Ff]ailed to (?:boot|load|initialize|start) .{0,20}(?:GSP|FSP)"
        r"|(?:GSP|FSP)\b.{0,60}(?:boot|bootstrap).{0,20}fail|_kgspBootGspRm|kgspInitRm_\w{1,20}: .{0,40}(?:cannot|fail)"
        r"|kfsp\w{1,60}: .{0,60}(?:[Tt]imed? ?out|[Ee]rror|fail)",
        "kernel_gsp.c, kernel_gsp_tu102.c, kern_fsp.c"),
    DriverMessage("bar-invalid", "rm",
        r"This PCI I/O region assigned to your NVIDIA device is invalid|BAR\d is 0M @", "nv-pci.c"),
    DriverMessage("probe-failed", "rm",
        r"probe routine failed for|probe of \S{1,20} failed with error|probe with driver nvidia failed with error",
        "nv.c, drivers/base/dd.c"),
    DriverMessage("none-initialized", "rm",
        r"None of the NVIDIA (?:devices|graphics adapters) were initialized|No NVIDIA (?:devices|graphics adapters?) "
        r"(?:probed|found)", "nv.c"),
    # printed with Xid 119, which it stands for if that line was not pasted
    DriverMessage("gsp-rpc-timeout", "gsp", r"\*{4,} ?GSP Timeout ?\*{4,}", "kernel_gsp.c"),
    DriverMessage("gsp-timeout", "gsp",
        r"(?:GSP|eartbeat).{0,400}(?:[Tt][Ii][Mm][Ee][Dd]? ?[Oo]ut|[Hh]eartbeat|likely needs to be reset)"
        r"|(?:[Tt][Ii][Mm][Ee][Dd]? ?[Oo]ut|likely needs to be reset).{0,400}GSP", "kernel_gsp.c, rpc.c"),
    DriverMessage("reset-required", "rm", "NV_ERR_RESET_REQUIRED", "osapi.c, kernel_gsp.c"),
    DriverMessage("reset-advised", "rm", r"needs? (?:to be|a) reset", "osapi.c, kernel_gsp.c"),
    DriverMessage("nvlink", "nvlink", r"(?i:nvlink).{0,400}\b[Ff]ail(?:ed|ure)?\b|\b[Ff]ail.{0,400}(?i:nvlink)",
        "knvlink"),
)  # fmt: skip


def driver_message(text: str) -> DriverMessage | None:
    """The row for a message of the driver that is not an Xid; None for messages that healthy machines log too."""
    return next((row for row in DRIVER_MESSAGES if re.search(row.pattern, text)), None)


class HostMessage(msgspec.Struct, frozen=True):
    """One row of the table: the event that a message matching `pattern` means, and the code that prints it.

    The group `device` or `bus` is the subject of the event, `interface` one of several of its parts, `count` the
    number of errors that a line stands for. The message must contain `phrase`, which is cheap to check, so that a
    pattern is only compiled when it is needed.
    """

    kind: HostEventKind
    phrase: str
    pattern: str
    source: str


HOST_MESSAGES: tuple[HostMessage, ...] = (
    HostMessage("machine-check-fatal", "[Hardware Error]",
        r"mce: \[Hardware Error\]: CPU (?P<device>\d+): Machine Check Exception:", "x86 mce/core.c"),
    HostMessage("machine-check-fatal", "achine check", r"Kernel panic - not syncing: .{0,40}achine check",
        "x86 mce/core.c"),
    HostMessage("machine-check-fatal", "event severity",
        r"(?:\{\d+\})?\[Hardware Error\]: *event severity: (?:fatal|recoverable)", "acpi/apei/ghes.c"),
    HostMessage("machine-check-fatal", "[Hardware Error]",
        r"(?:mce: )?\[Hardware Error\]: (?:Error Status: )?(?:System Fatal error|Uncorrected, )", "x86 mce/amd.c"),
    HostMessage("machine-check", "[Hardware Error]",
        r"(?:mce: )?\[Hardware Error\]: (?:Error Status: )?(?:Corrected|Deferred) error\b", "x86 mce/amd.c"),
    HostMessage("machine-check", "[Hardware Error]",
        r"mce: \[Hardware Error\]: (?:Machine check events logged|CPU (?P<device>\d+): Machine Check:)",
        "x86 mce/core.c"),
    HostMessage("machine-check", "event severity", r"(?:\{\d+\})?\[Hardware Error\]: *event severity: corrected",
        "acpi/apei/ghes.c"),
    HostMessage("memory-uncorrected", "EDAC ", r"EDAC (?P<device>MC\d+): (?P<count>\d{1,9}) UE ", "edac/edac_mc.c"),
    HostMessage("memory-corrected", "EDAC ", r"EDAC (?P<device>MC\d+): (?P<count>\d{1,9}) CE ", "edac/edac_mc.c"),
    HostMessage("memory-uncorrected", "hardware memory",
        r"mce: Uncorrected hardware memory error|(?:MCE|Memory failure): .{0,80}hardware memory corruption",
        "mm/memory-failure.c"),
    HostMessage("memory-uncorrected", "Memory failure", r"Memory failure: 0x[0-9a-f]+: ", "mm/memory-failure.c"),
    HostMessage("soft-lockup", "soft lockup", r"(?:watchdog: )?BUG: soft lockup - CPU#(?P<device>\d+) stuck for",
        "kernel/watchdog.c"),
    HostMessage("hard-lockup", "hard LOCKUP",
        r"(?:NMI )?watchdog: Watchdog detected hard LOCKUP on cpu (?P<device>\d+)", "kernel/watchdog.c"),
    HostMessage("rcu-stall", "INFO: rcu_", r"(?:rcu: )?INFO: rcu_\w{1,20} (?:self-)?detected ",
        "kernel/rcu/tree_stall.h"),
    HostMessage("hung-task", "blocked for more than", r"INFO: task (?s:.{0,64}?):\d+ blocked for more than \d+ seconds",
        "kernel/hung_task.c"),
    # any program may write a number like "1234 [#12]" into the kernel's log
    HostMessage("oops", " [#",
        r"(?:traps: )?(?:PANIC: )?(?:Oops|Internal error|invalid opcode|general protection|stack segment|divide error"
        r"|double fault|control protection|int3|bounds|alignment check|invalid TSS|segment not present)\b"
        r".{0,200}: [0-9a-f]{4,16} \[#\d{1,4}\]", "x86 dumpstack.c, arm64 traps.c"),
    HostMessage("panic", "Kernel panic - not syncing", r"Kernel panic - not syncing\b", "kernel/panic.c"),
    HostMessage("oops", "nable to handle", r"(?:BUG: u|U)nable to handle (?:kernel|page fault)",
        "x86 and arm64 mm/fault.c"),
    HostMessage("oops", "NULL pointer", r"BUG: kernel NULL pointer dereference", "x86 mm/fault.c"),
    HostMessage("oom-kill", "ut of memory",
        r"(?:Memory cgroup out|Out) of memory(?: \([^)]{0,80}\))?: Kill(?:ed)? process \d+ ", "mm/oom_kill.c"),
    HostMessage("nfs-timeout", "nfs: server", r"nfs: server (?P<device>[^\s,]{1,120}) not responding",
        "net/sunrpc, fs/nfs"),
    HostMessage("nfs-ok", "nfs: server", r"nfs: server (?P<device>[^\s,]{1,120}) OK", "net/sunrpc, fs/nfs"),
    HostMessage("read-only", "read-only",
        r"(?:EXT4-fs|BTRFS)\S{0,10} \((?:device )?(?P<device>[\w-]{1,40})\): .{0,60}[Rr]emounting filesystem read-only",
        "fs/ext4/super.c"),
    HostMessage("io-error", " error, dev ",
        rf"(?:blk_update_request: |print_req_error: )?(?:I/O|critical \w{{1,20}}) error, dev {_DISK}",
        "block/blk-core.c"),
    HostMessage("io-error", "Buffer I/O error", rf"Buffer I/O error on dev(?:ice)? {_DISK}", "fs/buffer.c"),
    HostMessage("io-error", "nvme nvme",
        r"nvme (?P<device>nvme\d+): (?:I/O .{1,60}timeout|controller is down|Device not ready|Disabling device)",
        "nvme/host/pci.c"),
    HostMessage("io-error", "EXT4-fs error", r"EXT4-fs error \(device (?P<device>[\w-]{1,40})\)", "fs/ext4/super.c"),
    HostMessage("io-error", "XFS (", r"XFS \((?P<device>[\w-]{1,40})\): .{0,40}(?:I/O [Ee]rror|Corruption)",
        "fs/xfs/xfs_error.c"),
    HostMessage("nic-power", "insufficient power", rf"{_NIC}: .{{0,60}}[Dd]etected insufficient power on the PCIe slot",
        "mlx5/core/events.c"),
    HostMessage("nic-temperature", "emperature", rf"{_NIC}: .{{0,100}}[Hh]igh [Tt]emperature", "mlx5/core/events.c"),
    HostMessage("nic-cable", "Port module event", rf"{_NIC}: Port module event\[error\]: ", "mlx5/core/events.c"),
    HostMessage("nic-firmware", "mlx5_c",
        rf"{_NIC}: (?:mlx5_cmd_(?:out_err|check)|cmd_status_err|wait_func).{{0,160}}(?:failed|imeout)",
        "mlx5/core/cmd.c"),
    HostMessage("nic-firmware", "mlx5_core",
        rf"{_NIC}: .{{0,60}}(?:[Hh]ealth (?:compromised|issue)|mlx5_load_one failed|[Ff]atal error|assert_var)",
        "mlx5/core/health.c"),
    HostMessage("nic-firmware", "NETDEV WATCHDOG", r"NETDEV WATCHDOG: .{0,60}transmit queue \d+ timed out",
        "net/sched/sch_generic.c"),
    HostMessage("nic-link-down", "ink", rf"{_NIC}{_OF_NIC}: (?:NIC )?[Ll]ink (?:is )?[Dd]own",
        "mlx5/core/en_main.c and others"),
    HostMessage("nic-link-up", "ink", rf"{_NIC}{_OF_NIC}: (?:NIC )?[Ll]ink (?:is )?[Uu]p",
        "mlx5/core/en_main.c and others"),
    HostMessage("signature-rejected", "rejected",
        r"Loading of (?:unsigned module|module with unavailable key|unsigned binary) is rejected",
        "kernel/module/signing.c"),
    HostMessage("signature-rejected", "unsigned module", r"Lockdown: .{1,60}: unsigned module loading is restricted",
        "security/lockdown"),
    HostMessage("signature-rejected", "PKCS#7", r"PKCS#7 signature not signed with a trusted key",
        "crypto/asymmetric_keys"),
    HostMessage("other-kernel", "nvidia",
        r"nvidia(?:_\w{1,20})?: (?:version magic '|disagrees about version of symbol|Unknown symbol)",
        "kernel/module/main.c"),
    HostMessage("other-driver", "nouveau", rf"nouveau {_BUS}: (?!.{{0,40}}(?:unknown chipset|probe failed))",
        "drm/nouveau"),
    HostMessage("other-driver", "probe routine was not called", r"NVRM: The NVIDIA probe routine was not called for ",
        "NVIDIA nv.c"),
    HostMessage("other-driver", "nouveau", r"NVRM: nouveau, ", "NVIDIA nv.c"),
    HostMessage("other-gpu-unusable", "uncorrectable hardware error",
        rf"amdgpu {_BUS}: (?:amdgpu: )?uncorrectable hardware error\(", "drm/amd/amdgpu"),
    HostMessage("other-gpu-unusable", "NOT usable",
        rf"habanalabs {_BUS}: Failed to initialize hl\d{{1,3}}\. Device is NOT usable", "drivers/accel/habanalabs"),
    HostMessage("other-gpu", "amdgpu",
        rf"(?:amdgpu {_BUS}: (?:amdgpu: )?)?(?:\[drm:\w{{1,60}} \[amdgpu\]\] \*ERROR\* |Fatal error |GPU reset begin"
        r"|ring \S{1,20} timeout|\w{1,60} failed)", "drm/amd/amdgpu"),
    HostMessage("other-driver", "already bound", rf"NVRM: GPU {_BUS} is already bound to ", "NVIDIA nv-pci.c"),
)  # fmt: skip
# one of these is in every message of the table
HOST_WORDS = tuple(dict.fromkeys(row.phrase for row in HOST_MESSAGES))


def host_message(message: str) -> tuple[HostEventKind, str | None, str | None, int] | None:
    """The kind of event, the device, its interface and the number of errors in a kernel message; None for any other."""
    for row in HOST_MESSAGES:
        if row.phrase in message and (found := _compiled(row.pattern).match(message)):
            named = found.groupdict()
            device = short_bus_id(named["bus"]) if named.get("bus") else named.get("device")
            return row.kind, device, named.get("interface"), int(named.get("count") or 1)
    return None
