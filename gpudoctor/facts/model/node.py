"""A node and everything known about it: the one data structure that every source produces."""

from typing import Literal

import msgspec

from gpudoctor.facts.model.driver import Driver as Driver
from gpudoctor.facts.model.driver import FabricManager as FabricManager
from gpudoctor.facts.model.driver import HostEvent as HostEvent
from gpudoctor.facts.model.driver import HostEventKind as HostEventKind
from gpudoctor.facts.model.driver import KernelEvent as KernelEvent
from gpudoctor.facts.model.driver import KernelLog as KernelLog
from gpudoctor.facts.model.driver import Unanswered as Unanswered
from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing, known
from gpudoctor.facts.model.reported import Reported as Reported
from gpudoctor.facts.model.storage import Storage as Storage
from gpudoctor.facts.model.storage import StorageMount as StorageMount

SourceKind = Literal["live", "facts", "capture", "simulated", "profile"]


class Source(Fact, frozen=True):
    """Where the facts come from. `faults` names the simulated faults; reports print the `notes`.

    `kind` is kept when facts are written to a file and read again: a simulated node stays
    SIMULATED however often it is copied. `files` are the dumps that a capture was assembled from.
    `profile`: nothing was read (`plan` only).
    """

    kind: SourceKind = "facts"
    name: str = ""
    collected_at: str | Missing = NOT_READ
    faults: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def may_be_part(self) -> bool:
        """Whether what is not shown may still be there: somebody pasted a text, perhaps not all of it."""
        return self.kind == "capture"


class PciDevice(Fact, frozen=True):
    """An NVIDIA function on the PCI bus. `pci_class` 0x0300xx VGA, 0x0302xx 3D, 0x0680xx NVSwitch.

    `off_bus`: its configuration space reads all ones (`rev ff`). `virtual_function`: one of those (SR-IOV) that a GPU
    of this machine is divided into for virtual machines; inside of one it looks like a GPU.
    """

    bus_id: str
    pci_class: str
    device_id: str | Missing = NOT_READ
    driver: str | Missing | None = NOT_READ
    numa_node: int | Missing | None = NOT_READ
    off_bus: bool = False
    virtual_function: bool = False


class PciBus(Fact, frozen=True):
    """NVIDIA devices on the bus, whether the driver shows them or not; and the IOMMU.

    `iommu` is off, passthrough or translated, derived from the groups and their domain type.
    """

    nvidia_devices: tuple[PciDevice, ...] | Missing = NOT_READ
    iommu: Literal["off", "passthrough", "translated"] | Missing = NOT_READ


class NumaNode(Fact, frozen=True):
    """A NUMA node. `is_gpu_memory`: HBM that appears as a node without CPUs (Grace, POWER9); it is not RAM."""

    node: int
    memory_mib: int | Missing = NOT_READ
    cpus: str = ""
    is_gpu_memory: bool = False


class Host(Fact, frozen=True):
    """The machine around the GPUs.

    `ram_mib` is RAM without GPU memory; `memory_limit_mib`, `cpu_quota` and the ulimits are
    None if there is no limit. `virtualization` is none, vm (with the hypervisor in
    `hypervisor`) or container (`container` names the engine, and `hypervisor` that of the virtual
    machine that it runs in, if it does). `cpus_usable` are those that
    this process may run on (affinity), before the quota. `cpu_governor` "powersave" is slow
    under acpi-cpufreq but the normal, dynamic one under `cpu_scaling_driver` intel_pstate and
    amd-pstate-epp. If CPUs differ, their values are joined by commas.
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
    secure_boot: bool | Missing = NOT_READ

    @property
    def is_guest(self) -> bool:
        """Whether this is a virtual machine, or a container in one: a hypervisor stands before the hardware."""
        return self.virtualization == "vm" or not isinstance(self.hypervisor, Missing)


class Variable(Fact, frozen=True):
    """An environment variable. `path_exists` is set if the value names a file."""

    name: str
    value: str
    path_exists: bool | None = None


class Environment(Fact, frozen=True):
    """The variables that control CUDA, NCCL, torchrun and the scheduler; nothing else is kept."""

    variables: tuple[Variable, ...] | Missing = NOT_READ

    def get(self, name: str) -> str | None:
        """The value; None if it is unset or the environment is not known."""
        found = self.variable(name)
        return found.value if found else None

    def variable(self, name: str) -> Variable | None:
        return next((v for v in known(self.variables) or () if v.name == name), None)

    def starting(self, prefix: str) -> tuple[Variable, ...]:
        return tuple(v for v in known(self.variables) or () if v.name.startswith(prefix))


class NcclNetPlugin(Fact, frozen=True):
    """A network plugin of NCCL (libnccl-net*.so). `libfabric`: whether it is aws-ofi-nccl, the one for libfabric."""

    path: str
    libfabric: bool | Missing = NOT_READ


class Software(Fact, frozen=True):
    """The Python packages that a training run would use. Read from files, never by importing torch.

    `nccl_net_plugins` are those that the dynamic loader finds, in its order.
    """

    python: str | Missing = NOT_READ
    torch: str | Missing = NOT_READ
    torch_cuda: str | Missing | None = NOT_READ
    torch_location: str | Missing = NOT_READ
    nccl: str | Missing = NOT_READ
    nccl_copies: tuple[str, ...] = ()
    nccl_net_plugins: tuple[NcclNetPlugin, ...] | Missing = NOT_READ


class Interface(Fact, frozen=True):
    """A network interface; `state` is the kernel's operstate."""

    name: str
    state: str | Missing = NOT_READ
    mtu: int | Missing = NOT_READ
    speed_gbit_s: float | Missing = NOT_READ


class RdmaPort(Fact, frozen=True):
    """A port of an InfiniBand, RoCE or EFA adapter. `link_layer`: InfiniBand, Ethernet; Unknown for EFA.

    `rate_gbit_s` is the active rate, `max_rate_gbit_s` the port's maximum if it is
    known. `interface` is the RoCE port's network interface. `adapter` is the type (MT4129), `firmware` its version,
    `driver` the kernel driver (mlx5_core, efa). `virtual_function`: it is one of the functions (SR-IOV) that an
    adapter of this machine is divided into; in a virtual machine that was given one it looks like an adapter.
    The counters count since the driver was loaded: `link_downed`, `link_recoveries` (link_error_recovery),
    `symbol_errors` (symbol_error), `receive_errors` (port_rcv_errors).
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
    adapter: str | Missing = NOT_READ
    firmware: str | Missing = NOT_READ
    link_recoveries: int | Missing = NOT_READ
    symbol_errors: int | Missing = NOT_READ
    receive_errors: int | Missing = NOT_READ
    driver: str | Missing = NOT_READ
    virtual_function: bool | Missing = NOT_READ

    @property
    def is_active(self) -> bool:
        """Whether it carries traffic now; False also if its state is not known."""
        return isinstance(self.state, str) and "ACTIVE" in self.state.upper()

    @property
    def is_efa(self) -> bool:
        """Whether it is an AWS Elastic Fabric Adapter: not InfiniBand, and useless to NCCL without a plugin.

        If the driver is not known (in a paste), the device name decides: efa_0, or rdmap16s27 with a link layer that is
        neither InfiniBand nor Ethernet.
        """
        if isinstance(self.driver, str):
            return self.driver == "efa"
        unspecified = not isinstance(self.link_layer, Missing) and self.link_layer not in ("InfiniBand", "Ethernet")
        return self.device.startswith("efa_") or (self.device.startswith("rdmap") and unspecified)


class Network(Fact, frozen=True):
    """Interfaces, RDMA ports, and the two ways GPUDirect RDMA can work.

    `peermem_registered`: nvidia_peermem is registered with the InfiniBand core; a loaded module does nothing without.
    """

    interfaces: tuple[Interface, ...] | Missing = NOT_READ
    rdma_ports: tuple[RdmaPort, ...] | Missing = NOT_READ
    peermem_loaded: bool | Missing = NOT_READ
    peermem_registered: bool | Missing = NOT_READ
    dmabuf_supported: bool | Missing = NOT_READ


class Node(Fact, frozen=True):
    """One machine. GPUs are ordered by bus id and keep NVML's index. `reported`: what a pasted text says of it."""

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
    fabric_manager: FabricManager = FabricManager()
    storage: Storage = Storage()
    reported: tuple[Reported, ...] = ()


def to_json(node: Node) -> bytes:
    """The node as one JSON document, which `from_json` reads back as an equal node."""
    body = msgspec.json.encode(node)
    # omit_defaults leaves the schema out, but a file must carry it
    return b'{"schema":"gpudoctor.facts/1"' + (b"," + body[1:] if len(body) > 2 else b"}")


def from_json(data: bytes | str) -> Node:
    """Read a node. Raise msgspec.ValidationError or msgspec.DecodeError, which name the wrong place."""
    return msgspec.json.decode(data, type=Node)


def short_bus_id(bus_id: str) -> str:
    """NVML's 00000000:18:00.0 in the form sysfs and people use: 0000:18:00.0, lower case.

    >>> short_bus_id("00000000:BB:00.0")
    '0000:bb:00.0'
    """
    domain, _, rest = bus_id.strip().lower().rpartition(":")
    domain, _, bus = domain.rpartition(":")
    # virtual roots (VMD) have domains of five digits; NVML pads all domains to eight
    return f"{domain.lstrip('0'):0>4}:{bus}:{rest}"
