"""Kernel messages with words that a user of the machine chooses, and what logs put before a message."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from gpudoctor.facts.kernel_log.lines import collect, is_of_interest
from gpudoctor.facts.kernel_log.records import text_records
from gpudoctor.facts.model.driver import KernelEvent
from tests.narrowed import present

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
NONE = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
OFF_BUS = "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."
AER = "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0"

# a GPU that is lost at boot: its fault is two lines below its name
BOOT = (
    "NVRM: The NVIDIA GPU 0000:18:00.0",
    "NVRM: (PCI ID: 10de:2901) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
BUS_9B = "0000:9b:00.0"
# line; row of the table, or None; kind; bus id
DRIVER_LINES: list[tuple[str, str | None, str, str | None]] = [
    (f"NVRM: GPU {BUS_9B}: RmInitAdapter failed! (0x25:0x65:1457)", "init-failed", "rm", BUS_9B),
    (f"NVRM: GPU {BUS_9B}: rm_init_adapter failed, device minor number 3", "init-failed", "rm", BUS_9B),
    ("NVRM: GPU3 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP", "gsp-boot", "gsp", None),
    ("NVRM: GPU3 RmInitAdapter: Cannot initialize GSP firmware RM", "gsp-boot", "gsp", None),
    ("NVRM: GPU0 kgspInitRm_IMPL: cannot bootstrap riscv/gsp: 0xffff", "gsp-boot", "gsp", None),
    ("NVRM: GPU0 kfspPollForQueueEmpty_IMPL: Timed out waiting for FSP command queue", "gsp-boot", "gsp", None),
    (f"NVRM: BAR1 is 0M @ 0x0 (PCI:{BUS_9B})", "bar-invalid", "rm", BUS_9B),
    (
        f"NVRM: GPU {BUS_9B}: GPU does not have the necessary power cables connected.",
        "no-power-cable",
        "rm",
        BUS_9B,
    ),
    (f"nvidia {BUS_9B}: not ready 65535ms after bus reset; giving up", "inaccessible", "rm", BUS_9B),
    ("NVRM: The NVIDIA probe routine failed for 2 device(s).", "probe-failed", "rm", None),
    (f"nvidia: probe of {BUS_9B} failed with error -1", None, "rm", BUS_9B),
    (f"nvidia {BUS_9B}: probe with driver nvidia failed with error -1", None, "rm", BUS_9B),
    ("NVRM: None of the NVIDIA devices were initialized.", "none-initialized", "rm", None),
    (f"NVRM: GPU {BUS_9B}: GPU has fallen off the bus.", "off-bus", "off-bus", BUS_9B),
]
# line; kind; device
HOST_LINES: list[tuple[str, str, str | None]] = [
    ("mce: [Hardware Error]: Machine check events logged", "machine-check", None),
    ("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 0: be00000000800400", "machine-check-fatal", "12"),
    ("{1}[Hardware Error]: event severity: corrected", "machine-check", None),
    ("[Hardware Error]: Error Status: Corrected error, no action required.", "machine-check", None),
    ("mce: [Hardware Error]: Deferred error, no action required.", "machine-check", None),
    ("[Hardware Error]: Uncorrected, software restartable error.", "machine-check-fatal", None),
    ("[Hardware Error]: MC3 Error (node 1): a decoder of another kernel", "machine-check", None),
    ("EDAC MC2: 1 CE memory read error on CPU_SrcID#0_MC#2_Chan#0_DIMM#0 (channel:0)", "memory-corrected", "MC2"),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0", "memory-uncorrected", "MC0"),
    ("watchdog: BUG: soft lockup - CPU#17 stuck for 26s! [python3:4711]", "soft-lockup", "17"),
    ("rcu: INFO: rcu_preempt self-detected stall on CPU", "rcu-stall", None),
    ("INFO: task python3:4711 blocked for more than 122 seconds.", "hung-task", None),
    ("Oops: 0000 [#1] PREEMPT SMP NOPTI", "oops", None),
    ("general protection fault, probably for non-canonical address 0xdead00000100: 0000 [#2] SMP", "oops", None),
    ("Internal error: Oops: 0000000096000004 [#1] SMP", "oops", None),
    ("invalid opcode: 0000 [#1] PREEMPT SMP", "oops", None),
    ("Kernel panic - not syncing: Fatal exception", "panic", None),
    ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "oops", None),
    ("Unable to handle kernel paging request at virtual address ffff800000000000", "oops", None),
    ("Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB", "oom-kill", None),
    ("Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB", "oom-kill", None),
    ("nfs: server 10.0.0.9 not responding, still trying", "nfs-timeout", "10.0.0.9"),
    ("nfs: server 10.0.0.9 OK", "nfs-ok", "10.0.0.9"),
    ("I/O error, dev nvme3n1, sector 1234 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2", "io-error", "nvme3n1"),
    ("blk_update_request: critical medium error, dev sdb, sector 1234", "io-error", "sdb"),
    ("nvme nvme2: I/O 256 QID 4 timeout, aborting", "io-error", "nvme2"),
    ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", "read-only", "nvme0n1p2"),
    (f"mlx5_core {BUS_9B}: mlx5_pcie_event:299:(pid 4711): Detected insufficient power on the PCIe slot (27W).",
     "nic-power", BUS_9B),
    (f"mlx5_core {BUS_9B}: mlx5_cmd_out_err:838:(pid 4711): ACCESS_REG(0x805) op_mod(0x1) failed, status bad",
     "nic-firmware", BUS_9B),
    (f"mlx5_core {BUS_9B}: poll_health:1096:(pid 0): device's health compromised - reached miss count",
     "nic-firmware", BUS_9B),
    (f"mlx5_core {BUS_9B} ens1np0: Link down", "nic-link-down", BUS_9B),
    (f"amdgpu {BUS_9B}: amdgpu: Fatal error during GPU init", "other-gpu", BUS_9B),
    (f"amdgpu {BUS_9B}: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
     "other-gpu-unusable", BUS_9B),
    (f"habanalabs {BUS_9B}: Failed to initialize hl2. Device is NOT usable !", "other-gpu-unusable", BUS_9B),
    ("[drm:amdgpu_gfx_enable_kcq [amdgpu]] *ERROR* KCQ enable failed", "other-gpu", None),
    (f"ice {BUS_9B} ens1: NIC Link is Down", "nic-link-down", BUS_9B),
    (f"mlx5_core {BUS_9B} ens1np0: Link up", "nic-link-up", BUS_9B),
    (f"mlx5_core {BUS_9B}: Port module event[error]: module 0, Cable error, Power budget", "nic-cable", BUS_9B),
    (f"mlx5_core {BUS_9B}: Port module event[error]: module 0, Cable error, High Temperature",
     "nic-temperature", BUS_9B),
    ("Loading of unsigned module is rejected", "signature-rejected", None),
    ("Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
     "signature-rejected", None),
    ("nvidia: version magic '6.2.0-33-generic SMP' should be '6.2.0-34-generic SMP'", "other-kernel", None),
    (f"nouveau {BUS_9B}: NVIDIA GA102 (172000a1)", "other-driver", BUS_9B),
    ("NVRM: The NVIDIA probe routine was not called for 3 device(s).", "other-driver", None),
]  # fmt: skip

# {comm} is a task's name (15 bytes), {path} a file, cgroup, label or device that a user names; as the kernel's sources
# print them (show_signal_msg, do_trap, mm/oom_kill.c, mm/page_alloc.c, kernel/hung_task.c, fs/exec.c, audit, usb, ext4)
WITH_USERS_WORDS = (
    "traps: {comm}[4711] general protection fault ip:55d0 sp:7ffc error:0 in {path}[55d0000+1000]",
    "{comm}[4711]: segfault at 0 ip 000055d0 sp 00007ffc error 4 in {path}[55d0000+1000] likely on CPU 3 (core 1)",
    "{comm}[4711]: unhandled exception: DABT (lower EL), ESR 0x92000046 in {path}[aaaa0000+1000]",
    "{comm}[4711]: memfd_create() called without MFD_EXEC or MFD_NOEXEC_SEAL set",
    "{comm} (4711): drop_caches: 3",
    "{comm}/4711: potentially unexpected fatal signal 11.",
    "{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "{comm}: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL), nodemask=(null),cpuset={path},mems_allowed=0",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={path},task_memcg=/{path},task={comm},pid=4711,uid=1000",
    "Memory cgroup out of memory: Killed process 4711 ({comm}) total-vm:1234kB, anon-rss:12kB",
    "[   4711]  1000  4711     1234      567    90112        0             0 {comm}",
    "INFO: task {comm}:4711 blocked for more than 120 seconds.",
    "task:{comm}         state:D stack:0     pid:4711  tgid:4711  ppid:1      flags:0x00004006",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [{comm}:4711]",
    "CPU: 3 PID: 4711 Comm: {comm} Tainted: P           OE      6.8.0-48-generic",
    'audit: type=1326 audit(1700000000.123:456): auid=1000 pid=4711 comm="{comm}" exe="{path}" sig=31',
    "process '{path}' started with executable stack",
    "usb 1-1: Product: {path}",
    "EXT4-fs (loop0): mounted filesystem {path} r/w with ordered data mode",
    "overlayfs: failed to resolve '{path}': -2",
    # the version that a program passes to the driver by an ioctl on /dev/nvidiactl, which any user may open
    "NVRM: API mismatch: the client has the version {path}, but\nNVRM: this kernel module has the version 570.158.01.",
)
OF_A_PROGRAM = "NVRM: Xid (PCI:0000:3b:00): 13, pid=4711, name={comm}, Graphics SM Warp Exception on (GPC 0)"

# the prefix before the first character of a message
STAMPS = (
    *("", "[  123.456789] ", "[  123.456789][ T1234] ", "[  123.456789][    C0] ", "[Thu Nov 14 07:00:14 2024] "),
    *("[  +0.000316] ", "[  123.456789 <    0.000003>] ", "[Nov14 07:00] ", "2024-11-15T12:02:03,491363+00:00 "),
    *(
        "<3>[  123.456789] ",
        "<3>",
        "kern  :err   : [  123.456789] ",
        "kern  :crit  : 2024-11-15T12:02:03,491363+00:00 ",
    ),
    *("kern  :err   : [Thu Nov 14 07:00:14 2024] ", "3,1377,123456789,-;", "3,1377,123456789,-,caller=T881;"),
    *("Nov 14 07:00:14 node12 kernel: ", "Dec  2 12:57:06 node-1.lab kernel: [  885.242168] ", "kernel: "),
    *("Nov 14 07:00:14.123456 node12 kernel: ", "2024-11-14T07:00:14.123456+00:00 node12 kernel: [  9.5] "),
    *("2024-11-14T07:00:14+0000 node12 kernel: ", "Thu 2024-11-14 07:00:14 UTC node12 kernel: ", "kernel:[ 1.5] "),
    *("[  123.456789] node12 kernel: ", "1731567614.123456 node12 kernel: ", "Nov 14 07:00:14 10.0.0.7 kernel: "),
    *("<3>1 2024-11-14T07:00:14.123Z node12 kernel - - - [ 1.5] ", "<3>Nov 14 07:00:14 node12 kernel: [ 1.5] "),
    # syslog-ng's RFC 5424; dmesg --color=always
    *('<3>1 2024-11-14T07:00:14Z node12 kernel - - [meta sequenceId="7"] ', "\x1b[32m[  123.456789] \x1b[0m\x1b[31m"),
    '2024-11-14T07:00:14+01:00 node12 kernel 77 ID7 [a@1 b="c d" e=""][f] [ 1.5] ',
    *("Nov 14 07:00:14 node12 kern.err kernel: ", "Nov 14 07:00:14 node12 imklog[77]: kernel: [ 9.0] "),
)
WRAPPINGS = (
    *("", "2024-01-02T03:04:05.123456789Z stderr F ", "2024-01-02T03:04:05.123456789Z stdout F ", "logger-1  | "),
    *("[pod/dmesg-x7k2p/reader] ", "17:", "    17\t", "/var/log/kern.log:", "dmesg.txt:12:", "    ", "\t"),
)
BEFORE_A_STAMP = ("node12: ", "2024-01-02T03:04:05.123456789Z ")

_BEFORE_WORDS = (
    *("", " ", "a", "a ", "x kernel: ", "kernel: ", "a kernel:", "[ 1.0] ", "[ 1.0] n kernel: ", "n: [ 1.0] ", "<3>"),
    *("\\x0a", "\n", "\nNVRM: ", "\r", "\x85", "\u2028", "\x1e", "\x0c", "3,1,1,-;", "\n3,1,1,-;", "1:", "a.log:"),
)
forged = st.builds(
    lambda before, words, behind: before + words + behind,
    st.sampled_from(_BEFORE_WORDS),
    st.sampled_from((LOST, NONE, SWITCH, OFF_BUS, AER, "NVRM: GSP timeout", "fallen off the bus", "NVRM: Xid (PCI:")),
    st.sampled_from(("", " ", "\n", "\n[ 2.0] NVRM: x", ")")),
)
names = st.one_of(forged, st.text(max_size=40), st.builds(lambda a, b: a[:15] + b, forged, st.text(max_size=3)))


def comm(name: str) -> str:
    """What is left of a name in task->comm."""
    return name.encode("utf-8", "replace")[:15].decode("utf-8", "ignore").replace("\0", "")


def path(name: str) -> str:
    """What is left of it as the name of a file."""
    return name.encode("utf-8", "replace")[:255].decode("utf-8", "ignore").replace("\0", "").replace("/", "")


def message(form: str, name: str, other: str) -> str:
    return form.replace("{comm}", comm(name)).replace("{path}", path(other))


def kmsg(message: str, sequence: int = 1, seconds: float = 1.5, priority: int = 4) -> str:
    """One record of /dev/kmsg, escaped as msg_add_ext_text in the kernel's printk.c does."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte != 0x5C else f"\\x{byte:02x}"
        for byte in message.encode("utf-8", "replace")
    )
    return f"{priority},{sequence},{round(seconds * 1e6)},-;{escaped}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"


def parse_kernel_lines(lines: Iterable[str]) -> tuple[KernelEvent, ...]:
    """The events in the lines of a kernel log."""
    log, _ = collect(text_records(lines, is_of_interest), "a text")
    return present(log.events)
