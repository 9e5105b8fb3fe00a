"""A node and everything known about it: the one shape that every source gives."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.facts.model.gpu import Fact, Gpu, GpuPair
from gpudoctor.facts.model.missing import NOT_READ, Missing

SourceKind = Literal["live", "facts", "capture", "simulated"]


class Source(Fact, frozen=True):
    """Where the facts come from. `faults` names the simulated faults; `notes` are said in reports.

    `kind` is kept when facts are written to a file and read again: a simulated node stays
    SIMULATED however often it is copied. `files` are the dumps a capture was put together from.
    """

    kind: SourceKind = "facts"
    name: str = ""
    collected_at: str | Missing = NOT_READ
    faults: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


_DID_NOT_RETURN = "did not return"


class Unanswered(Fact, frozen=True):
    """A driver call that did not return before its deadline, or in which the process died: then `reason` says how."""

    call: str
    gpu: int | None
    waited_s: float
    reason: str = _DID_NOT_RETURN

    @property
    def hangs(self) -> bool:
        """Whether it did not return; else the process died in it."""
        return self.reason == _DID_NOT_RETURN

    @property
    def words(self) -> str:
        """What happened, with the GPU, as people read it."""
        where = "" if self.gpu is None else f" on GPU {self.gpu}"
        if self.hangs:
            return f"{self.call}{where} {self.reason} in {self.waited_s:.1f} s"
        return f"{self.reason}{where}" if self.call in self.reason else f"{self.call}{where} {self.reason}"


class Driver(Fact, frozen=True):
    """The NVIDIA driver: kernel module, user library, and how they answered.

    `init_code` is nvmlInit's return code (0 success, 9 driver not loaded, 12 library not
    found, 18 library and kernel module differ ...); `init_error` its words. `device_count` is
    what the driver says; `gpus` of the node may be fewer where handles failed. A capture that
    shows GPUs implies a loaded driver: readers of captures set `init_code` 0. `handle_errors` is
    what the driver answered instead of giving a handle; `unread_handles` names the GPUs whose handle
    did not come in time, with the reason, which is no word of the driver. `denied_gpus` are
    bus ids of GPUs that it does not show and whose device files this process may not open.
    `init_s` is nvmlInit's time, `start_s` the time from its begin until the last GPU had given its
    handle: without persistence mode the GPUs are woken in it. `slowest_call` is the slowest of the
    others. `binding_hidden_by` is the package that other Python programs get instead of NVIDIA's
    own binding ("pynvml 11.5.0"); None if nothing is in front of it.
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
    unanswered: tuple[Unanswered, ...] = ()
    calls: int | Missing = NOT_READ
    slowest_call: str | Missing = NOT_READ
    slowest_call_s: float | Missing = NOT_READ
    init_s: float | Missing = NOT_READ
    binding_hidden_by: str | None = None
    start_s: float | Missing = NOT_READ


class PciDevice(Fact, frozen=True):
    """An NVIDIA function on the PCI bus. `pci_class` 0x0300xx VGA, 0x0302xx 3D, 0x0680xx NVSwitch."""

    bus_id: str
    pci_class: str
    device_id: str | Missing = NOT_READ
    driver: str | Missing | None = NOT_READ
    numa_node: int | Missing | None = NOT_READ


class PciBus(Fact, frozen=True):
    """NVIDIA devices on the bus, whether the driver shows them or not; and the IOMMU.

    `iommu` is off, passthrough or translated, judged by groups and their domain type.
    """

    nvidia_devices: tuple[PciDevice, ...] | Missing = NOT_READ
    iommu: Literal["off", "passthrough", "translated"] | Missing = NOT_READ


class NumaNode(Fact, frozen=True):
    """A NUMA node. `is_gpu_memory`: HBM that Grace shows as a CPU-less node; it is not RAM."""

    node: int
    memory_mib: int | Missing = NOT_READ
    cpus: str = ""
    is_gpu_memory: bool = False


class Host(Fact, frozen=True):
    """The machine around the GPUs.

    `ram_mib` is RAM without GPU memory; `memory_limit_mib`, `cpu_quota` and the ulimits are
    None where there is no limit. `virtualization` is none, vm (with the hypervisor in
    `hypervisor`) or container (`container` names the engine). `cpus_usable` are those that
    this process may run on (affinity), before the quota. `cpu_governor` "powersave" is slow
    under acpi-cpufreq but the normal, dynamic one under `cpu_scaling_driver` intel_pstate and
    amd-pstate-epp. Different CPUs' different words are joined by commas.
    """

    hostname: str | Missing = NOT_READ
    kernel: str | Missing = NOT_READ
    os_name: str | Missing = NOT_READ
    machine: str | Missing = NOT_READ
    uptime_s: float | Missing = NOT_READ
    virtualization: Literal["none", "vm", "container"] | Missing = NOT_READ
    hypervisor: str | Missing = NOT_READ
    container: str | Missing = NOT_READ
    ram_mib: int | Missing = NOT_READ
    ram_available_mib: int | Missing = NOT_READ
    memory_limit_mib: int | Missing | None = NOT_READ
    memory_limit_source: str | Missing = NOT_READ
    numa_nodes: tuple[NumaNode, ...] | Missing = NOT_READ
    cpus_total: int | Missing = NOT_READ
    cpus_usable: int | Missing = NOT_READ
    cpus_usable_list: str | Missing = NOT_READ
    cpu_quota: float | Missing | None = NOT_READ
    cpu_quota_source: str | Missing = NOT_READ
    cpu_governor: str | Missing = NOT_READ
    cpu_scaling_driver: str | Missing = NOT_READ
    load_1m: float | Missing = NOT_READ
    shm_mib: int | Missing = NOT_READ
    shm_free_mib: int | Missing = NOT_READ
    memlock_kib: int | Missing | None = NOT_READ
    open_files: int | Missing | None = NOT_READ
    processes: int | Missing | None = NOT_READ
    swap_mib: int | Missing = NOT_READ
    swap_free_mib: int | Missing = NOT_READ


KernelEventKind = Literal["xid", "sxid", "off-bus", "gsp", "aer", "pcie-bandwidth", "nvlink", "rm", "unclear", "gap"]


class KernelEvent(Fact, frozen=True):
    """One kernel log line that speaks of a GPU, a switch or its link; `text` is the line itself.

    `code` is the Xid or SXid number. `fatal` is what an SXid line says of itself. `bus_id` in
    sysfs form. `time_s` is seconds since boot. Kind "unclear" is a line with the driver's words in a place
    where a user's may stand; "gap" stands for lines that were overwritten before they could be read.
    """

    kind: KernelEventKind
    text: str
    code: int | None = None
    bus_id: str | None = None
    time_s: float | None = None
    fatal: bool | None = None


class KernelLog(Fact, frozen=True):
    """Kernel log lines since boot that matter here. `source` is where they were read.

    `truncated`: lines since boot (or since the driver was loaded) are missing, and `gap` says which and why.
    `starts_s`: seconds since boot of the first line, if those before it are gone. `quoted`: so many lines were
    passed over, since the driver's words stand in them as a user's (the name of a program, of a file).
    `forgeable`: nothing says which lines are the kernel's own, so that a user could have written events.
    """

    events: tuple[KernelEvent, ...] | Missing = NOT_READ
    source: str | Missing = NOT_READ
    truncated: bool = False
    gap: str | None = None
    starts_s: float | None = None
    quoted: int = 0
    forgeable: bool = False


class Variable(Fact, frozen=True):
    """An environment variable. `path_exists` is set where the value names a file."""

    name: str
    value: str
    path_exists: bool | None = None


class Environment(Fact, frozen=True):
    """The variables that steer CUDA, NCCL, torchrun and the scheduler; nothing else is kept."""

    variables: tuple[Variable, ...] | Missing = NOT_READ

    def get(self, name: str) -> str | None:
        """The value, or None where it is unset or the environment is not known."""
        found = self.variable(name)
        return found.value if found else None

    def variable(self, name: str) -> Variable | None:
        if isinstance(self.variables, Missing):
            return None
        return next((v for v in self.variables if v.name == name), None)

    def starting(self, prefix: str) -> tuple[Variable, ...]:
        if isinstance(self.variables, Missing):
            return ()
        return tuple(v for v in self.variables if v.name.startswith(prefix))


class Software(Fact, frozen=True):
    """What a training run would be built on. Read from files, never by importing torch."""

    python: str | Missing = NOT_READ
    torch: str | Missing = NOT_READ
    torch_cuda: str | Missing | None = NOT_READ
    torch_location: str | Missing = NOT_READ
    nccl: str | Missing = NOT_READ
    nccl_copies: tuple[str, ...] = ()


class Interface(Fact, frozen=True):
    """A network interface; `state` is the kernel's operstate."""

    name: str
    state: str | Missing = NOT_READ
    mtu: int | Missing = NOT_READ
    speed_gbit_s: float | Missing = NOT_READ


class RdmaPort(Fact, frozen=True):
    """A port of an InfiniBand or RoCE adapter. `link_layer`: InfiniBand or Ethernet.

    `rate_gbit_s` is the active rate, `max_rate_gbit_s` what the port could do where that is
    known. `interface` is the RoCE port's network interface.
    """

    device: str
    port: int
    state: str | Missing = NOT_READ
    physical_state: str | Missing = NOT_READ
    link_layer: str | Missing = NOT_READ
    rate_gbit_s: float | Missing = NOT_READ
    max_rate_gbit_s: float | Missing = NOT_READ
    bus_id: str | Missing = NOT_READ
    numa_node: int | Missing | None = NOT_READ
    interface: str | Missing = NOT_READ
    link_downed: int | Missing = NOT_READ


class Network(Fact, frozen=True):
    """Interfaces, RDMA ports, and the two ways GPUDirect RDMA can work."""

    interfaces: tuple[Interface, ...] | Missing = NOT_READ
    rdma_ports: tuple[RdmaPort, ...] | Missing = NOT_READ
    peermem_loaded: bool | Missing = NOT_READ
    dmabuf_supported: bool | Missing = NOT_READ


class Node(Fact, frozen=True):
    """One machine. Immutable; GPUs are ordered by bus id and keep NVML's index."""

    schema: Literal["gpudoctor.facts/1"] = "gpudoctor.facts/1"
    source: Source = Source()
    driver: Driver = Driver()
    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[GpuPair, ...] | Missing = NOT_READ
    pci: PciBus = PciBus()
    host: Host = Host()
    kernel_log: KernelLog = KernelLog()
    environment: Environment = Environment()
    software: Software = Software()
    network: Network = Network()


def to_json(node: Node) -> bytes:
    """The node as one JSON document; `from_json` gives the same node back."""
    body = msgspec.json.encode(node)
    # omit_defaults leaves the schema out; a file must say what it is
    return b'{"schema":"gpudoctor.facts/1"' + (b"," + body[1:] if len(body) > 2 else b"}")


def from_json(data: bytes | str) -> Node:
    """Raise msgspec.ValidationError or msgspec.DecodeError with the place where it is wrong."""
    return msgspec.json.decode(data, type=Node)


def short_bus_id(bus_id: str) -> str:
    """NVML's 00000000:18:00.0 in the form sysfs and people use: 0000:18:00.0, lower case.

    >>> short_bus_id("00000000:BB:00.0")
    '0000:bb:00.0'
    """
    domain, _, rest = bus_id.strip().lower().rpartition(":")
    domain, _, bus = domain.rpartition(":")
    # virtual roots (VMD) have domains of five digits, NVML pads all to eight
    return f"{domain.lstrip('0'):0>4}:{bus}:{rest}"
