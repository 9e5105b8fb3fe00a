"""What nvmlDeviceGetFieldValues answers: each value has its own id, and some a link as scope."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from gpudoctor.facts.model.gpu import Gpu, NvLink
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.nvml import labels as words
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
