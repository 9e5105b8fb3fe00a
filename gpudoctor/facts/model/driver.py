"""The NVIDIA driver and Fabric Manager: how they were loaded, what they answered, and events of the kernel log.

Events of GPUs and switches, and of the machine around them. Data only.
"""

from typing import Literal

from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing

_DID_NOT_RETURN = "did not return"


# 535.104.05, 470.57
DRIVER_VERSION = r"\d{3}\.\d{1,3}(?:\.\d{1,3})?"
LoadFailureCause = Literal[
    "signature-rejected",
    "other-kernel",
    "other-driver",
    "build-failed",
    "no-container-runtime",
    "device-denied",
    "refused",
]
KernelEventKind = Literal[
    "xid", "sxid", "off-bus", "gsp", "aer", "iommu-fault", "pcie-bandwidth", "nvlink", "rm", "unclear", "gap"
]
HostEventKind = Literal[
    "machine-check",
    "machine-check-fatal",
    "memory-corrected",
    "memory-uncorrected",
    "soft-lockup",
    "hard-lockup",
    "rcu-stall",
    "hung-task",
    "oops",
    "panic",
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
    "other-gpu-unusable",
]


def on_gpu(text: str, gpu: int | None) -> str:
    """The text, with the GPU if there is one: "nvmlInit", "nvmlDeviceGetName on GPU 3"."""
    return text if gpu is None else f"{text} on GPU {gpu}"


class Unanswered(Fact, frozen=True):
    """A driver call that did not return before its deadline, or during which the process died (`reason`: how)."""

    call: str
    gpu: int | None
    waited_s: float
    reason: str = _DID_NOT_RETURN

    @property
    def hangs(self) -> bool:
        """Whether the call did not return; otherwise the process died in it."""
        return self.reason == _DID_NOT_RETURN

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended the process during the call."""
        return "SIGKILL" in self.reason

    @property
    def words(self) -> str:
        """What happened, with the GPU, for a message."""
        if not self.hangs and self.call in self.reason:
            return on_gpu(self.reason, self.gpu)
        text = f"{on_gpu(self.call, self.gpu)} {self.reason}"
        return f"{text} in {self.waited_s:.1f} s" if self.hangs else text


class LoadFailure(Fact, frozen=True):
    """Why the driver did not load, according to a tool or the kernel log; `text` is the line itself.

    Causes: `signature-rejected`, Secure Boot does not trust the module's key; `other-kernel`, the module was built for
    another kernel; `other-driver`, nouveau or vfio holds the devices; `build-failed`, DKMS did not build it or has no
    headers; `no-container-runtime`, the container engine has no NVIDIA runtime; `device-denied`, the device cgroup or
    the permissions of /dev/nvidia*; `refused`, the module found no device that it supports.
    """

    cause: LoadFailureCause
    text: str


class DkmsBuild(Fact, frozen=True):
    """One line of `dkms status` for the NVIDIA module. `kernel` is None if it was added but built for no kernel."""

    version: str
    kernel: str | None
    state: str


class Driver(Fact, frozen=True):
    """The NVIDIA driver: kernel module, user library, and how they answered.

    `init_code` is nvmlInit's return code (0 success, 9 driver not loaded, 12 library not
    found, 18 library and kernel module differ ...); `init_error` its text. `device_count` is
    the driver's; `gpus` of the node may be fewer if handles failed. A capture that
    shows GPUs implies a loaded driver: readers of captures set `init_code` 0. `handle_errors` are
    the errors that the driver returned instead of a handle; `unread_handles` names the GPUs whose handle
    did not come in time, with our reason, not the driver's. `denied_gpus` are
    bus ids of GPUs that it does not show and whose device files this process may not open. `drained_gpus` are bus
    ids of GPUs that it hides because an operator drained them (nvidia-smi drain), `excluded_gpus` those that the
    module's option NVreg_ExcludedGpus, or the fabric manager, keeps from use.
    `init_s` is the duration of nvmlInit, `start_s` the time from its start until the last GPU returned its
    handle: without persistence mode the GPUs are woken in that time. `slowest_call` is the slowest of the
    others. `binding_hidden_by` is the package that other Python programs import instead of NVIDIA's
    own binding ("pynvml 11.5.0"); None if nothing shadows it. `disk_version` is the version of the module on disk
    (modinfo), which `modprobe` would load. `load_failures` and `dkms` are what other tools report about loading it.
    """

    module_loaded: bool | Missing = NOT_READ
    module_version: str | Missing = NOT_READ
    nouveau_loaded: bool | Missing = NOT_READ
    init_code: int | Missing = NOT_READ
    init_error: str | Missing = NOT_READ
    library_version: str | Missing = NOT_READ
    cuda_version: str | Missing = NOT_READ
    device_count: int | Missing = NOT_READ
    handle_errors: tuple[str, ...] = ()
    unread_handles: tuple[str, ...] = ()
    denied_gpus: tuple[str, ...] | Missing = NOT_READ
    drained_gpus: tuple[str, ...] | Missing = NOT_READ
    excluded_gpus: tuple[str, ...] | Missing = NOT_READ
    unanswered: tuple[Unanswered, ...] = ()
    calls: int | Missing = NOT_READ
    slowest_call: str | Missing = NOT_READ
    slowest_call_s: float | Missing = NOT_READ
    init_s: float | Missing = NOT_READ
    binding_hidden_by: str | None = None
    start_s: float | Missing = NOT_READ
    disk_version: str | Missing = NOT_READ
    load_failures: tuple[LoadFailure, ...] = ()
    dkms: tuple[DkmsBuild, ...] | Missing = NOT_READ


class FabricManager(Fact, frozen=True):
    """The service nvidia-fabricmanager, which NVSwitch nodes need for any CUDA program.

    `service` is systemd's state (active, inactive, failed, activating, not-found); `result` is how it ended
    (exit-code, signal, ...). `errors` are the error lines of its log, oldest first.
    """

    service: str | Missing = NOT_READ
    result: str | Missing = NOT_READ
    version: str | Missing = NOT_READ
    errors: tuple[str, ...] | Missing = NOT_READ


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
    """The versions of a program's driver library and of the kernel module that refused it, as the module logs them.

    A version that the log does not show is Missing: only some lines of the message were kept.
    """

    library: str | Missing
    module: str | Missing


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
