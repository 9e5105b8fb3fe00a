"""The table's rows of field values, NVLinks and the fabric."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from gpudoctor.facts.model.gpu import Fabric, Gpu, NvLink
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.nvml import codes
from gpudoctor.testing.nvml_table import NvmlTable, code_of, number_of, thousandths
from gpudoctor.testing.table_gpu import PCI_INFO, pci_info, version_of

FIELD_VALUES = "nvmlDeviceGetFieldValues"
_UNSIGNED, _SIGNED = 3, 5  # NVML_VALUE_TYPE_*
ALL_LINKS = 0xFFFF_FFFF


# field id -> leaf of `Gpu`
_FIELDS = {
    1: "ecc.enabled",
    2: "ecc.pending",
    3: "ecc.corrected_volatile",
    4: "ecc.uncorrected_volatile",
    5: "ecc.corrected_aggregate",
    6: "ecc.uncorrected_aggregate",
    29: "memory_repair.retired_single_bit",
    30: "memory_repair.retired_double_bit",
    31: "memory_repair.retirement_pending",
    82: "thermal.memory_c",
    94: "pcie.replays",
    95: "pcie.replay_rollovers",
    142: "memory_repair.remapped_corrected",
    143: "memory_repair.remapped_uncorrected",
    144: "memory_repair.remap_pending",
    145: "memory_repair.remap_failed",
    193: "thermal.shutdown_margin_c",
    194: "thermal.slowdown_margin_c",
    196: "thermal.max_operating_margin_c",
}
_WATT_FIELDS = {
    186: "power.draw_w",
    187: "power.min_limit_w",
    188: "power.max_limit_w",
    189: "power.default_limit_w",
    190: "power.limit_w",
    192: "power.requested_limit_w",
}
_HOT = ("throttle_times.sw_thermal_us", "throttle_times.hw_thermal_us", "throttle_times.hw_power_brake_us")
_SLOWED_TIMES = {74: "throttle_times.sw_power_cap_us", 75: _HOT[0], 76: "throttle_times.sync_boost_us"}
_HIDDEN = (b"FFFF:FF:FF.0", 0xFFFF_FFFF, 0xFF, 0xFF, 0, 0, b"FFFFFFFF:FF:FF.0")
_COMPLETED = 3


def _slowed_times(driver: tuple[int, ...]) -> dict[int, str]:
    """The ids of throttle time fields in nvml.h of that driver: those of _HOT came with 575 and changed later.

    On 570, and again from 580.82 on, 251 to 253 are NVML_FI_PWR_SMOOTHING_*, which no simulated GPU has.
    """
    if driver < (575,):
        return _SLOWED_TIMES
    ids = (251, 252, 253) if driver < (580, 82) else (269, 270, 271)
    return _SLOWED_TIMES | dict(zip(ids, _HOT, strict=True))


def add_fields(table: NvmlTable, gpu: Gpu, driver: tuple[int, ...]) -> None:
    """Add all fields that are in the facts; any other id is not supported."""
    table.put(FIELD_VALUES, gpu.index, "")
    links = known(gpu.nvlinks) or ()
    for field, value in _device_fields(gpu, driver).items():
        _add_field(table, gpu, field, 0, value)
    # traffic (138, 139) is not in the facts: none
    for link in links:
        for field, value in {**_link_fields(link), 138: 0, 139: 0}.items():
            _add_field(table, gpu, field, link.link, value)
    for field in (138, 139) if links else ():
        _add_field(table, gpu, field, ALL_LINKS, 0)


def _add_field(table: NvmlTable, gpu: Gpu, field: int, scope: int, value: Any) -> None:
    if not isinstance(value, Missing) and value < 0:
        table.put(FIELD_VALUES, gpu.index, "Ii4x", _SIGNED, value, args=(field, scope))
    else:
        table.put(FIELD_VALUES, gpu.index, "IQ", _UNSIGNED, value, args=(field, scope))


def _device_fields(gpu: Gpu, driver: tuple[int, ...]) -> dict[int, Any]:
    slowed = _slowed_times(driver)
    fields = {field: attrgetter(path)(gpu) for field, path in _FIELDS.items()}
    fields |= {field: thousandths(attrgetter(path)(gpu)) for field, path in (_WATT_FIELDS | slowed).items()}  # mW, ns
    fields[230] = number_of(gpu.recovery_action, codes.RECOVERY_ACTIONS)
    fields.update(_link_counts(gpu))
    return {field: int(value) if isinstance(value, bool) else value for field, value in fields.items()}


def _link_counts(gpu: Gpu) -> dict[int, Any]:
    if isinstance(gpu.nvlinks, Missing):
        # a GPU without links counts none; links that were not read must not become that
        unread = Missing(gpu.nvlinks.reason, "denied")
        count: Any = 0 if gpu.nvlinks.kind == "unsupported" else unread if code_of(gpu.nvlinks) == 3 else gpu.nvlinks
        return {91: count, 147: count}
    to_switch = sum(link.remote_kind == "switch" and link.is_up for link in gpu.nvlinks)
    return {91: len(gpu.nvlinks), 147: to_switch}


def _link_fields(link: NvLink) -> dict[int, Any]:
    return {
        161: link.replay_errors,
        162: link.recovery_errors,
        163: link.crc_errors,
        164: thousandths(link.speed_gb_s),
        165: number_of(link.state, codes.LINK_STATES),
        166: number_of(link.version, codes.LINK_VERSIONS),
    }


def add_links(table: NvmlTable, gpu: Gpu) -> None:
    """Add state, version and remote end of each NVLink, and the fabric in its three versions."""
    _add_fabric(table, gpu)
    if isinstance(gpu.nvlinks, Missing):
        return
    me = gpu.index
    for link in gpu.nvlinks:
        args = (link.link,)
        table.put("nvmlDeviceGetNvLinkState", me, "I", number_of(link.state, codes.LINK_STATES), args=args)
        table.put("nvmlDeviceGetNvLinkVersion", me, "I", number_of(link.version, codes.LINK_VERSIONS), args=args)
        end = number_of(link.remote_kind, codes.LINK_ENDS)
        table.put("nvmlDeviceGetNvLinkRemoteDeviceType", me, "I", end, args=args)
        far = link.remote_bus_id
        info = _HIDDEN if far is None else (far,) if isinstance(far, Missing) else pci_info(far)
        table.put("nvmlDeviceGetNvLinkRemotePciInfo_v2", me, PCI_INFO, *info, args=args)


def _add_fabric(table: NvmlTable, gpu: Gpu) -> None:
    me, fabric = gpu.index, gpu.fabric
    state: Any = number_of(fabric.state, codes.FABRIC_STATES)
    common: tuple[Any, ...] = (bytes(16), 0, 0, state)
    if state == _COMPLETED:
        status = number_of(fabric.status, codes.ERROR_WORDS)
        common = (_uuid(fabric.cluster_uuid), status, fabric.clique_id, state)
    mask = _mask(fabric)
    health = number_of(known(fabric.health_summary) or "value 0", codes.FABRIC_HEALTH)
    table.put("nvmlDeviceGetGpuFabricInfo", me, "16sIIB3x", *common)
    table.put_versioned("nvmlDeviceGetGpuFabricInfoV", me, version_of(36, 2), "16sIIB3xI", *common, mask)
    table.put_versioned("nvmlDeviceGetGpuFabricInfoV", me, version_of(40, 3), "16sIIB3xIB3x", *common, mask, health)


def _uuid(text: Any) -> Any:
    if isinstance(text, Missing):
        return text
    try:
        return bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return bytes(16)


def _mask(fabric: Fabric) -> int:
    bandwidth = {None: 0, "degraded": 1, "full": 2}.get(known(fabric.health_bandwidth), 0)
    configuration = number_of(known(fabric.incorrect_configuration) or "value 0", codes.FABRIC_CONFIGURATION)
    return (
        bandwidth
        | _tristate(fabric.route_unhealthy) << 4
        | _tristate(fabric.access_timeout_recovery) << 6
        | (0 if isinstance(configuration, Missing) else configuration & 0xF) << 8
    )


def _tristate(leaf: bool | Missing) -> int:
    return 0 if isinstance(leaf, Missing) else 1 if leaf else 2
