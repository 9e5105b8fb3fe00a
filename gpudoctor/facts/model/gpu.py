"""One GPU and what hangs on it. Units are in the names; a leaf that is not known is `Missing`."""

from typing import Literal

import msgspec

from gpudoctor.facts.model.missing import NOT_READ, Missing


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of every fact: immutable, and written to JSON without the leaves nobody read."""


class CallError(Fact, frozen=True):
    """A driver call that answered with an error that may cost the whole GPU (15, 16, 999); see `error_cost`."""

    call: str
    code: int
    name: str


class PcieHop(Fact, frozen=True):
    """One device on the way from the GPU up to its root port, as sysfs shows it.

    Speeds are GT/s a lane (2.5, 5, 8, 16, 32, 64). `acs_redirect` is true where ACS request or
    completion redirect is on for a bridge (it sends peer-to-peer traffic through the root).
    `*_downgraded` is lspci's own word for a link below what this device can do, told where its maximum is not.
    """

    bus_id: str
    vendor_id: str | Missing = NOT_READ
    device_id: str | Missing = NOT_READ
    pci_class: str | Missing = NOT_READ
    speed_gt_s: float | Missing = NOT_READ
    max_speed_gt_s: float | Missing = NOT_READ
    width: int | Missing = NOT_READ
    max_width: int | Missing = NOT_READ
    aer_correctable: int | Missing = NOT_READ
    aer_nonfatal: int | Missing = NOT_READ
    aer_fatal: int | Missing = NOT_READ
    acs_redirect: bool | Missing = NOT_READ
    width_downgraded: bool | Missing = NOT_READ
    speed_downgraded: bool | Missing = NOT_READ


class PcieLink(Fact, frozen=True):
    """The GPU's own PCIe link.

    `generation_max` is what GPU and slot together can do (NVML MaxPcieLinkGeneration);
    `device_generation_max` the GPU alone; `host_generation_max` the slot. `path` runs from the
    GPU itself (first) to the root port (last); the GPU alone where the bridges are hidden (VM).
    """

    generation: int | Missing = NOT_READ
    generation_max: int | Missing = NOT_READ
    device_generation_max: int | Missing = NOT_READ
    host_generation_max: int | Missing = NOT_READ
    width: int | Missing = NOT_READ
    width_max: int | Missing = NOT_READ
    replays: int | Missing = NOT_READ
    replay_rollovers: int | Missing = NOT_READ
    path: tuple[PcieHop, ...] | Missing = NOT_READ


LinkState = Literal["active", "inactive", "sleep", "disabled"]


class NvLink(Fact, frozen=True):
    """One NVLink. `speed_gb_s` is the raw line rate a direction as nvidia-smi prints it.

    `remote_bus_id` is None for a switch that hides its address (FFFFFFFF:FF:FF.0).
    Error counters are lifetime counts since driver load.
    """

    link: int
    state: LinkState | Missing = NOT_READ
    version: str | Missing = NOT_READ
    speed_gb_s: float | Missing = NOT_READ
    remote_kind: Literal["gpu", "switch", "cpu"] | Missing = NOT_READ
    remote_bus_id: str | Missing | None = NOT_READ
    crc_errors: int | Missing = NOT_READ
    replay_errors: int | Missing = NOT_READ
    recovery_errors: int | Missing = NOT_READ

    @property
    def is_up(self) -> bool:
        """Whether it carries data, or would at once: a link that sleeps wakes by itself."""
        return self.state in ("active", "sleep")


class Fabric(Fact, frozen=True):
    """NVSwitch fabric as the GPU sees it. Unsupported on nodes without one.

    `state`: not-started, in-progress, completed. `status`: the NVML return name in words
    ("success", "insufficient resources", ...). Health values as nvidia-smi words them, in
    lower case ("full", "degraded", "healthy", "unhealthy", "limited capacity").
    """

    state: str | Missing = NOT_READ
    status: str | Missing = NOT_READ
    clique_id: int | Missing = NOT_READ
    cluster_uuid: str | Missing = NOT_READ
    health_summary: str | Missing = NOT_READ
    health_bandwidth: str | Missing = NOT_READ
    route_unhealthy: bool | Missing = NOT_READ
    access_timeout_recovery: bool | Missing = NOT_READ
    incorrect_configuration: str | Missing = NOT_READ


class Ecc(Fact, frozen=True):
    """ECC mode and counters. Volatile counts restart with the driver; aggregate ones are for life."""

    enabled: bool | Missing = NOT_READ
    pending: bool | Missing = NOT_READ
    corrected_volatile: int | Missing = NOT_READ
    uncorrected_volatile: int | Missing = NOT_READ
    corrected_aggregate: int | Missing = NOT_READ
    uncorrected_aggregate: int | Missing = NOT_READ
    sram_uncorrected_volatile: int | Missing = NOT_READ
    sram_uncorrected_aggregate: int | Missing = NOT_READ
    sram_threshold_exceeded: bool | Missing = NOT_READ


class MemoryRepair(Fact, frozen=True):
    """Row remapping (Ampere and newer) and page retirement (Volta and older).

    `banks_*_spare` is the remap histogram: memory banks by how many spare rows they have left.
    """

    remapped_corrected: int | Missing = NOT_READ
    remapped_uncorrected: int | Missing = NOT_READ
    remap_pending: bool | Missing = NOT_READ
    remap_failed: bool | Missing = NOT_READ
    banks_max_spare: int | Missing = NOT_READ
    banks_high_spare: int | Missing = NOT_READ
    banks_partial_spare: int | Missing = NOT_READ
    banks_low_spare: int | Missing = NOT_READ
    banks_no_spare: int | Missing = NOT_READ
    retired_single_bit: int | Missing = NOT_READ
    retired_double_bit: int | Missing = NOT_READ
    retirement_pending: bool | Missing = NOT_READ
    channel_repair_pending: bool | Missing = NOT_READ
    tpc_repair_pending: bool | Missing = NOT_READ
    unrepairable: bool | Missing = NOT_READ


class Clocks(Fact, frozen=True):
    """Clocks in MHz, and why they are what they are.

    `event_reasons` are names of set bits (see `EVENT_REASONS`); unknown bits appear as "0x...".
    `locked_*` and `application_*` are settings.
    """

    graphics_mhz: int | Missing = NOT_READ
    sm_mhz: int | Missing = NOT_READ
    memory_mhz: int | Missing = NOT_READ
    graphics_max_mhz: int | Missing = NOT_READ
    sm_max_mhz: int | Missing = NOT_READ
    memory_max_mhz: int | Missing = NOT_READ
    application_graphics_mhz: int | Missing = NOT_READ
    application_memory_mhz: int | Missing = NOT_READ
    default_graphics_mhz: int | Missing = NOT_READ
    default_memory_mhz: int | Missing = NOT_READ
    performance_state: int | Missing = NOT_READ
    event_reasons: tuple[str, ...] | Missing = NOT_READ


# nvmlClocksEventReasons*; bit -> the name used in facts
EVENT_REASONS: dict[int, str] = {
    0x1: "idle",
    0x2: "application-clocks",
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x10: "sync-boost",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "hw-power-brake",
    0x100: "display-clocks",
}


class ThrottleTimes(Fact, frozen=True):
    """Time spent slowed down since driver load, in microseconds."""

    sw_power_cap_us: int | Missing = NOT_READ
    sync_boost_us: int | Missing = NOT_READ
    sw_thermal_us: int | Missing = NOT_READ
    hw_thermal_us: int | Missing = NOT_READ
    hw_power_brake_us: int | Missing = NOT_READ


class Thermal(Fact, frozen=True):
    """Temperatures and limits in Celsius.

    Newer GPUs tell a margin to the slowdown point instead of absolute limits: `margin_c` is
    what is left now (T.Limit), `*_margin_c` where each measure starts on that same scale
    (0 or below).
    """

    gpu_c: int | Missing = NOT_READ
    memory_c: int | Missing = NOT_READ
    slowdown_c: int | Missing = NOT_READ
    shutdown_c: int | Missing = NOT_READ
    max_operating_c: int | Missing = NOT_READ
    memory_max_c: int | Missing = NOT_READ
    margin_c: int | Missing = NOT_READ
    slowdown_margin_c: int | Missing = NOT_READ
    shutdown_margin_c: int | Missing = NOT_READ
    max_operating_margin_c: int | Missing = NOT_READ


class Power(Fact, frozen=True):
    """Power in watts. `limit_w` is the enforced limit."""

    draw_w: float | Missing = NOT_READ
    limit_w: float | Missing = NOT_READ
    requested_limit_w: float | Missing = NOT_READ
    default_limit_w: float | Missing = NOT_READ
    min_limit_w: float | Missing = NOT_READ
    max_limit_w: float | Missing = NOT_READ


class MigInstance(Fact, frozen=True):
    """One MIG device as CUDA would see it."""

    uuid: str | Missing = NOT_READ
    profile: str | Missing = NOT_READ
    gpu_instance: int | Missing = NOT_READ
    compute_instance: int | Missing = NOT_READ
    memory_mib: int | Missing = NOT_READ


Virtualization = Literal["none", "passthrough", "vgpu", "host-vgpu", "host-vsga"]
ComputeMode = Literal["default", "exclusive-thread", "prohibited", "exclusive-process"]


class Settings(Fact, frozen=True):
    """What an operator may have set on the GPU."""

    persistence: bool | Missing = NOT_READ
    compute_mode: ComputeMode | Missing = NOT_READ
    mig_enabled: bool | Missing = NOT_READ
    mig_pending: bool | Missing = NOT_READ
    mig_instances: tuple[MigInstance, ...] | Missing = NOT_READ
    display_attached: bool | Missing = NOT_READ
    display_active: bool | Missing = NOT_READ
    addressing_mode: str | Missing = NOT_READ
    virtualization: Virtualization | Missing = NOT_READ
    confidential_compute: bool | Missing = NOT_READ


class GpuProcess(Fact, frozen=True):
    """A process on the GPU. `kind` is C compute, G graphics, C+G both, M MPS."""

    pid: int
    name: str | Missing = NOT_READ
    kind: str = "C"
    memory_mib: int | Missing = NOT_READ
    user: str | Missing = NOT_READ
    is_own: bool = False


# the desktop's, which draws the screen; MPS, which hands the GPU out; and DCGM, which only watches
# fmt: off
SYSTEM_PROGRAMS = (
    "xorg", "xwayland", "gnome-shell", "gnome-remote", "kwin", "plasmashell", "mutter", "sddm", "gdm", "lightdm",
    "cinnamon", "xfwm", "compiz", "weston", "sway", "hyprland", "xdg-desktop", "firefox", "chrome", "chromium",
    "nvidia-cuda-mps", "mps-server", "nv-hostengine", "dcgm-exporter",
)
# fmt: on


def system_program(name: str) -> str | None:
    """Which of SYSTEM_PROGRAMS a process of this name (or path) is; None for any other.

    After the name "-", "_", "." or a version may follow, and a letter may not.

    >>> system_program("/usr/lib/xorg/Xorg"), system_program("kwin_x11"), system_program("swayformer")
    ('xorg', 'kwin', None)
    """
    program = name.lower().rpartition("/")[2]
    return next((known for known in SYSTEM_PROGRAMS if _is_program(program, known)), None)


def _is_program(program: str, known: str) -> bool:
    rest = program[len(known) :]
    return program.startswith(known) and not rest[:1].isalpha()


class Utilization(Fact, frozen=True):
    """Busy shares in percent over the driver's last sample period."""

    gpu_pct: int | Missing = NOT_READ
    memory_pct: int | Missing = NOT_READ


class Gpu(Fact, frozen=True):
    """One GPU. `index` is NVML's; `bus_id` is sysfs form (0000:18:00.0, lower case).

    `errors` are calls that failed with 15 (lost), 16 (reset required) or 999 (unknown); `error_cost` says
    what they cost.
    `recovery_action`: one of `facts.nvml.labels.RECOVERY_ACTIONS`, or the raw value as "value N" for
    one this version does not know.
    `inforom_corrupted` is what the driver says of the board's own store of settings and counters.
    """

    index: int
    bus_id: str
    uuid: str | Missing = NOT_READ
    name: str | Missing = NOT_READ
    brand: str | Missing = NOT_READ
    architecture: str | Missing = NOT_READ
    compute_capability: str | Missing = NOT_READ
    pci_device_id: str | Missing = NOT_READ
    pci_subsystem_id: str | Missing = NOT_READ
    serial: str | Missing = NOT_READ
    vbios: str | Missing = NOT_READ
    board_part_number: str | Missing = NOT_READ
    minor_number: int | Missing = NOT_READ
    module_id: int | Missing = NOT_READ
    errors: tuple[CallError, ...] = ()
    recovery_action: str | Missing = NOT_READ
    memory_total_mib: int | Missing = NOT_READ
    memory_reserved_mib: int | Missing = NOT_READ
    memory_used_mib: int | Missing = NOT_READ
    memory_free_mib: int | Missing = NOT_READ
    pcie: PcieLink = PcieLink()
    nvlinks: tuple[NvLink, ...] | Missing = NOT_READ
    fabric: Fabric = Fabric()
    ecc: Ecc = Ecc()
    memory_repair: MemoryRepair = MemoryRepair()
    clocks: Clocks = Clocks()
    throttle_times: ThrottleTimes = ThrottleTimes()
    thermal: Thermal = Thermal()
    power: Power = Power()
    settings: Settings = Settings()
    processes: tuple[GpuProcess, ...] | Missing = NOT_READ
    utilization: Utilization = Utilization()
    numa_node: int | Missing | None = NOT_READ
    cpu_affinity: str | Missing = NOT_READ
    inforom_corrupted: bool | Missing = NOT_READ

    @property
    def label(self) -> str:
        return f"GPU {self.index} ({self.bus_id})"


# Best to worst; NV# is kept apart, as `GpuPair.nvlinks`.
PathKind = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
P2pStatus = Literal["OK", "CNS", "GNS", "TNS", "DR", "NS", "U"]


class GpuPair(Fact, frozen=True):
    """How two GPUs reach each other; `a` and `b` are NVML indices, a < b.

    `path` is the PCIe relation, Missing where the matrix shows NV# instead. `nvlinks` counts
    the links of the shown bond (through switches, all of them). `p2p_read` and `p2p_write` are
    nvidia-smi's words: OK; CNS chipset, GNS GPU, TNS topology not supported; DR disabled by a
    registry key; NS not supported; U unknown.
    """

    a: int
    b: int
    path: PathKind | Missing = NOT_READ
    nvlinks: int | Missing = NOT_READ
    p2p_read: P2pStatus | Missing = NOT_READ
    p2p_write: P2pStatus | Missing = NOT_READ
