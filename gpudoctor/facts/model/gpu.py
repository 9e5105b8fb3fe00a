"""One GPU: its links, memory, clocks, power and settings. Units are in the names; an unknown leaf is `Missing`."""

import re
from typing import Literal

from gpudoctor.facts.model.links import Fabric as Fabric
from gpudoctor.facts.model.links import GpuPair as GpuPair
from gpudoctor.facts.model.links import LinkState as LinkState
from gpudoctor.facts.model.links import NvLink as NvLink
from gpudoctor.facts.model.links import P2pStatus as P2pStatus
from gpudoctor.facts.model.links import PathKind as PathKind
from gpudoctor.facts.model.links import PcieHop as PcieHop
from gpudoctor.facts.model.links import PcieLink as PcieLink
from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing, known
from gpudoctor.lazy import lazy_pattern

# with the index behind it, in place of a bus id that a text does not name
UNKNOWN_BUS = "unknown-"
# NVIDIA Grace superchips and GB10: the CPU uses NVLink-C2C to reach the GPU; PCIe is narrow or idle by design
_C2C_NAME = lazy_pattern(r"\b(GH200|GB200|GB300|GB10)\b", re.IGNORECASE)
# nvmlClocksEventReasons* (nvml.h): bit -> name in facts
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
Virtualization = Literal["none", "passthrough", "vgpu", "host-vgpu", "host-vsga"]
ComputeMode = Literal["default", "exclusive-thread", "prohibited", "exclusive-process"]
# desktop programs; MPS, which shares the GPU out; and DCGM, which only monitors
SYSTEM_PROGRAMS = (
    "xorg", "xwayland", "gnome-shell", "gnome-remote", "kwin", "plasmashell", "mutter", "sddm", "gdm", "lightdm",
    "cinnamon", "xfwm", "compiz", "weston", "sway", "hyprland", "xdg-desktop", "firefox", "chrome", "chromium",
    "nvidia-cuda-mps", "mps-server", "nv-hostengine", "dcgm-exporter",
)  # fmt: skip


class CallError(Fact, frozen=True):
    """A driver call that returned an error which may condemn the whole GPU (15, 16, 999); see `facts.nvml.codes`."""

    call: str
    code: int
    name: str


class Ecc(Fact, frozen=True):
    """ECC mode and counters. Volatile counts restart with the driver; aggregate ones cover the GPU's lifetime."""

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

    `banks_*_spare` is the remap histogram: how many memory banks have that many spare rows left.
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
    """Clocks in MHz, and what currently limits them.

    `event_reasons` are names of set bits (see `EVENT_REASONS`); unknown bits appear as "0x...".
    `application_*` are settings, `default_*` their defaults.
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


class ThrottleTimes(Fact, frozen=True):
    """Time spent slowed down since driver load, in microseconds."""

    sw_power_cap_us: int | Missing = NOT_READ
    sync_boost_us: int | Missing = NOT_READ
    sw_thermal_us: int | Missing = NOT_READ
    hw_thermal_us: int | Missing = NOT_READ
    hw_power_brake_us: int | Missing = NOT_READ


class Thermal(Fact, frozen=True):
    """Temperatures and limits in Celsius.

    Newer GPUs report a margin to the slowdown point instead of absolute limits: `margin_c` is
    what is left now (T.Limit), `*_margin_c` is where each measure starts on that same scale
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
    """One MIG device as CUDA sees it."""

    uuid: str | Missing = NOT_READ
    profile: str | Missing = NOT_READ
    gpu_instance: int | Missing = NOT_READ
    compute_instance: int | Missing = NOT_READ
    memory_mib: int | Missing = NOT_READ


class Settings(Fact, frozen=True):
    """Modes and settings of the GPU that an operator can change."""

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
    """A process on the GPU. `kind` is C compute, G graphics, C+G both, M MPS client; `is_own`: gpudoctor started it."""

    pid: int
    name: str | Missing = NOT_READ
    kind: str = "C"
    memory_mib: int | Missing = NOT_READ
    user: str | Missing = NOT_READ
    is_own: bool = False


def system_program(name: str) -> str | None:
    """The entry of SYSTEM_PROGRAMS that a process name (or path) belongs to; None for any other.

    The entry may be followed by "-", "_", "." or a version, but not by a letter.

    >>> system_program("/usr/lib/xorg/Xorg"), system_program("kwin_x11"), system_program("swayformer")
    ('xorg', 'kwin', None)
    """
    program = name.lower().rpartition("/")[2]
    begins = (entry for entry in SYSTEM_PROGRAMS if program.startswith(entry))
    return next((entry for entry in begins if not program[len(entry) :][:1].isalpha()), None)


class Utilization(Fact, frozen=True):
    """Utilization in percent over the driver's last sample period."""

    gpu_pct: int | Missing = NOT_READ
    memory_pct: int | Missing = NOT_READ


class Gpu(Fact, frozen=True):
    """One GPU. `index` is NVML's; `bus_id` is sysfs form (0000:18:00.0, lower case), or `UNKNOWN_BUS` with
    the index if a text did not name it.

    `errors` are calls that failed with 15 (lost), 16 (reset required) or 999 (unknown); `facts.nvml.codes` decides
    what they cost.
    `recovery_action`: one of `facts.nvml.codes.RECOVERY_ACTIONS`, or the raw value as "value N" if it
    is none of them.
    `inforom_corrupted`: whether the checksum of the infoROM, the board's store of settings and counters, is wrong.
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
    def bus_id_read(self) -> str | None:
        """The bus id; None if the text that this GPU was read from does not name it."""
        return None if self.bus_id.startswith(UNKNOWN_BUS) else self.bus_id

    @property
    def smi_id(self) -> str:
        """What `nvidia-smi -i` takes for this GPU: its bus id, UUID or index, the first that is known."""
        return self.bus_id_read or known(self.uuid) or str(self.index)

    @property
    def lspci(self) -> str:
        """The command that shows its PCI function in full; those of all NVIDIA GPUs if its bus id is not known."""
        return f"lspci -vvs {self.bus_id_read}" if self.bus_id_read else "lspci -vvd 10de:"

    @property
    def label(self) -> str:
        return f"GPU {self.index} ({self.bus_id_read})" if self.bus_id_read else f"GPU {self.index}"

    @property
    def on_c2c(self) -> bool:
        """Whether the CPU reaches this GPU over NVLink-C2C, so that its PCIe link has no load."""
        return _C2C_NAME.search(known(self.name) or "") is not None
