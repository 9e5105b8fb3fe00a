"""What nvmlDeviceGetFieldValues answers: each value has its own id, and some a link as scope."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from gpudoctor.facts.model.gpu import Fabric, Gpu, NvLink
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.nvml import labels as words
from gpudoctor.fakes.library_gpu_rows import PCI_INFO, pci_info, version_of
from gpudoctor.fakes.library_rows import LibraryRows, number_of, thousandths
from gpudoctor.fakes.nvml_table import FIELDS, WATT_FIELDS, slowed_times

_CALL = "nvmlDeviceGetFieldValues"
_UNSIGNED, _SIGNED = 3, 5  # NVML_VALUE_TYPE_*
_ALL_LINKS = 0xFFFF_FFFF
_UP = ("active", "sleep")


def tell_fields(rows: LibraryRows, gpu: Gpu, driver: tuple[int, ...]) -> None:
    """All fields that the facts know; any other id is not supported."""
    rows.tell(_CALL, gpu.index, "")
    links = () if isinstance(gpu.nvlinks, Missing) else gpu.nvlinks
    for field, value in _device_fields(gpu, driver).items():
        _tell(rows, gpu, field, 0, value)
    for link in links:
        for field, value in _link_fields(link).items():
            _tell(rows, gpu, field, link.link, value)
        for field in (138, 139):
            _tell(rows, gpu, field, link.link, 0)
    if links:
        # traffic is no fact: nothing was carried
        for field in (138, 139):
            _tell(rows, gpu, field, _ALL_LINKS, 0)


def _tell(rows: LibraryRows, gpu: Gpu, field: int, scope: int, value: Any) -> None:
    if not isinstance(value, Missing) and value < 0:
        rows.tell(_CALL, gpu.index, "Ii4x", _SIGNED, value, args=(field, scope))
    else:
        rows.tell(_CALL, gpu.index, "IQ", _UNSIGNED, value, args=(field, scope))


def _device_fields(gpu: Gpu, driver: tuple[int, ...]) -> dict[int, Any]:
    slowed = slowed_times(driver)
    fields = {field: attrgetter(path)(gpu) for field, path in FIELDS.items()}
    fields |= {field: thousandths(attrgetter(path)(gpu)) for field, path in (WATT_FIELDS | slowed).items()}  # mW, ns
    fields[230] = number_of(gpu.recovery_action, words.RECOVERY_ACTIONS)
    fields.update(_link_counts(gpu))
    return {field: int(value) if isinstance(value, bool) else value for field, value in fields.items()}


def _link_counts(gpu: Gpu) -> dict[int, Any]:
    if isinstance(gpu.nvlinks, Missing):
        # a GPU without links counts none
        count: Any = 0 if gpu.nvlinks.kind == "unsupported" else gpu.nvlinks
        return {91: count, 147: count}
    to_switch = sum(link.remote_kind == "switch" and link.state in _UP for link in gpu.nvlinks)
    return {91: len(gpu.nvlinks), 147: to_switch}


def _link_fields(link: NvLink) -> dict[int, Any]:
    return {
        161: link.replay_errors,
        162: link.recovery_errors,
        163: link.crc_errors,
        164: thousandths(link.speed_gb_s),
        165: number_of(link.state, words.LINK_STATES),
        166: number_of(link.version, words.LINK_VERSIONS),
    }


# NVLinks and the fabric: what has functions of its own beside the field values.

_HIDDEN = (b"FFFF:FF:FF.0", 0xFFFF_FFFF, 0xFF, 0xFF, 0, 0, b"FFFFFFFF:FF:FF.0")
_COMPLETED = 3


def tell_links(rows: LibraryRows, gpu: Gpu) -> None:
    """State, version and far end of each NVLink, and the fabric in its three forms."""
    _tell_fabric(rows, gpu)
    if isinstance(gpu.nvlinks, Missing):
        return
    me = gpu.index
    for link in gpu.nvlinks:
        args = (link.link,)
        rows.tell("nvmlDeviceGetNvLinkState", me, "I", number_of(link.state, words.LINK_STATES), args=args)
        rows.tell("nvmlDeviceGetNvLinkVersion", me, "I", number_of(link.version, words.LINK_VERSIONS), args=args)
        end = number_of(link.remote_kind, words.LINK_ENDS)
        rows.tell("nvmlDeviceGetNvLinkRemoteDeviceType", me, "I", end, args=args)
        far = link.remote_bus_id
        info = _HIDDEN if far is None else (far,) if isinstance(far, Missing) else pci_info(far)
        rows.tell("nvmlDeviceGetNvLinkRemotePciInfo_v2", me, PCI_INFO, *info, args=args)


def _tell_fabric(rows: LibraryRows, gpu: Gpu) -> None:
    me, fabric = gpu.index, gpu.fabric
    state: Any = number_of(fabric.state, words.FABRIC_STATES)
    done = state == _COMPLETED
    common: tuple[Any, ...] = (bytes(16), 0, 0, state)
    if done:
        status = number_of(fabric.status, words.ERROR_WORDS)
        clique = fabric.clique_id
        common = (_uuid(fabric.cluster_uuid), status, clique, state)
    mask = _mask(fabric)
    health = number_of(known(fabric.health_summary) or "value 0", words.FABRIC_HEALTH)
    rows.tell("nvmlDeviceGetGpuFabricInfo", me, "16sIIB3x", *common)
    two, three = version_of(36, 2), version_of(40, 3)
    rows.tell("nvmlDeviceGetGpuFabricInfoV", me, "I16sIIB3xI", two, *common, mask, args=(two,))
    rows.tell("nvmlDeviceGetGpuFabricInfoV", me, "I16sIIB3xIB3x", three, *common, mask, health, args=(three,))


def _uuid(text: Any) -> Any:
    if isinstance(text, Missing):
        return text
    try:
        return bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return bytes(16)


def _mask(fabric: Fabric) -> int:
    bandwidth = {None: 0, "degraded": 1, "full": 2}.get(known(fabric.health_bandwidth), 0)
    configuration = number_of(known(fabric.incorrect_configuration) or "value 0", words.FABRIC_CONFIGURATION)
    return (
        bandwidth
        | _tristate(fabric.route_unhealthy) << 4
        | _tristate(fabric.access_timeout_recovery) << 6
        | (0 if isinstance(configuration, Missing) else configuration & 0xF) << 8
    )


def _tristate(leaf: bool | Missing) -> int:
    return 0 if isinstance(leaf, Missing) else 1 if leaf else 2
