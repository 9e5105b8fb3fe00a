"""How a GPU is connected: its PCIe link and path, its NVLinks, the NVSwitch fabric, and pairs of GPUs.

And the rates of PCIe generations. Source: PCI Express Base Specification.
"""

from typing import Literal

from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing, known

# GT/s per lane
GT_S: dict[int, float] = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
# share of the bits that carry data: 8b/10b up to Gen2, 128b/130b up to Gen5, 242 of 256 bytes per FLIT in Gen6
_ENCODING: dict[int, float] = {1: 0.8, 2: 0.8, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}
_GENERATIONS = {speed: generation for generation, speed in GT_S.items()}
# GB/s (1e9) per lane and direction after line coding, to three places as tables print it (7.5625 as 7.563)
_LANE_GB_S: dict[int, float] = {
    generation: int(speed * _ENCODING[generation] / 8 * 1000 + 0.5) / 1000 for generation, speed in GT_S.items()
}
NO_LANES = (0, 255)  # what sysfs shows of a port without a link
LinkState = Literal["active", "inactive", "sleep", "disabled"]
# of a GPU's links, in a text that tells no more of them
ALL_INACTIVE = Missing("nvidia-smi says that all links are inactive, but not how many there are", "absent")
# Best to worst; NV# is not one of them: see `GpuPair.nvlinks`
PathKind = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
P2pStatus = Literal["OK", "CNS", "GNS", "TNS", "DR", "NS", "U"]


def generation_of(speed_gt_s: float) -> int | None:
    """The PCIe generation with this many GT/s per lane; None if no generation has that speed.

    >>> generation_of(16.0)
    4
    """
    return _GENERATIONS.get(round(speed_gt_s, 1))


def link_gb_s(generation: int | None, lanes: int) -> float | None:
    """Line rate in GB/s (1e9) each way, before packet overhead; None for an unknown generation.

    >>> link_gb_s(4, 8)
    15.75
    """
    if generation not in GT_S:
        return None
    return round(GT_S[generation] * _ENCODING[generation] / 8 * lanes, 2)


def lanes_gb_s(generation: int | None, lanes: int | None) -> float | None:
    """As `link_gb_s`, but from the rate that tables print for one lane; None also without a lane.

    >>> lanes_gb_s(4, 8)
    15.752
    """
    return _LANE_GB_S[generation] * lanes if generation in _LANE_GB_S and lanes else None


class PcieHop(Fact, frozen=True):
    """One device on the path from the GPU up to its root port, as sysfs shows it.

    Speeds are GT/s per lane (2.5, 5, 8, 16, 32, 64). `acs_redirect` is true if ACS request or
    completion redirect is on for a bridge (it sends peer-to-peer traffic through the root).
    `*_downgraded` is lspci's mark for a link below this device's maximum, printed even if the maximum is not.
    """

    bus_id: str
    vendor_id: str | Missing = NOT_READ
    device_id: str | Missing = NOT_READ
    pci_class: str | Missing = NOT_READ
    speed_gt_s: float | Missing = NOT_READ
    max_speed_gt_s: float | Missing = NOT_READ
    width: int | Missing = NOT_READ
    max_width: int | Missing = NOT_READ  # this device's own (sysfs: max_link_width)
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
    GPU itself (first) to the root port (last); it is the GPU alone if the bridges are hidden (VM).
    """

    generation: int | Missing = NOT_READ
    generation_max: int | Missing = NOT_READ
    device_generation_max: int | Missing = NOT_READ
    host_generation_max: int | Missing = NOT_READ
    width: int | Missing = NOT_READ
    width_max: int | Missing = NOT_READ  # of GPU and slot together (NVML: MaxPcieLinkWidth)
    replays: int | Missing = NOT_READ
    replay_rollovers: int | Missing = NOT_READ
    path: tuple[PcieHop, ...] | Missing = NOT_READ

    @property
    def generation_reachable(self) -> int | None:
        """The generation that GPU and slot can run together, as far as it is known."""
        both = known(self.generation_max)
        if both is not None:
            return both
        device, host = known(self.device_generation_max), known(self.host_generation_max)
        return None if device is None or host is None else min(device, host)


class NvLink(Fact, frozen=True):
    """One NVLink. `speed_gb_s` is the raw line rate per direction, as nvidia-smi prints it.

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
        """Whether it can carry data: a sleeping link wakes by itself."""
        return self.state in ("active", "sleep")


class Fabric(Fact, frozen=True):
    """NVSwitch fabric as the GPU sees it. Unsupported on nodes without one.

    `state`: not-started, in-progress, completed. `status`: the NVML return name in words
    ("success", "insufficient resources", ...). Health values are nvidia-smi's, in
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


class GpuPair(Fact, frozen=True):
    """How two GPUs reach each other; `a` and `b` are NVML indices, a < b.

    `path` is the PCIe relation, Missing if the matrix shows NV# instead. `nvlinks` counts
    the links between the two (through switches: all of them). `p2p_read` and `p2p_write` use
    nvidia-smi's codes: OK; CNS chipset, GNS GPU, TNS topology not supported; DR disabled by a
    registry key; NS not supported; U unknown.
    """

    a: int
    b: int
    path: PathKind | Missing = NOT_READ
    nvlinks: int | Missing = NOT_READ
    p2p_read: P2pStatus | Missing = NOT_READ
    p2p_write: P2pStatus | Missing = NOT_READ
