"""The NVSwitch fabric, read from NVML.

The structs of nvml.h are declared here: those of pynvml before 12.570 have a wrong size,
and their names differ between releases.
"""

from __future__ import annotations

from ctypes import Structure, byref, c_uint, c_uint8, c_uint32, sizeof
from typing import Any

from gpudoctor.facts.model.gpu import Fabric
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing
from gpudoctor.facts.nvml.client import DriverError, NvmlClient
from gpudoctor.facts.nvml.labels import (
    FABRIC_CONFIGURATION,
    FABRIC_HEALTH,
    FABRIC_STATES,
    FUNCTION_NOT_FOUND,
    error_word,
    word,
)

_VERSION_MISMATCH = 25
_UUID_BYTES = 16
_COMMON: list[tuple[str, Any]] = [
    ("clusterUuid", c_uint8 * _UUID_BYTES),
    ("status", c_uint),
    ("cliqueId", c_uint32),
    ("state", c_uint8),  # one byte and padding; pynvml declares 32 bits
]


class _FabricInfo(Structure):
    _fields_ = _COMMON


class _FabricInfoV2(Structure):
    _fields_ = [("version", c_uint), *_COMMON, ("healthMask", c_uint32)]


class _FabricInfoV3(Structure):
    _fields_ = [("version", c_uint), *_COMMON, ("healthMask", c_uint32), ("healthSummary", c_uint8)]


_FORMS: tuple[tuple[str, type[Structure], int], ...] = (
    ("nvmlDeviceGetGpuFabricInfoV", _FabricInfoV3, sizeof(_FabricInfoV3) | 3 << 24),
    ("nvmlDeviceGetGpuFabricInfoV", _FabricInfoV2, sizeof(_FabricInfoV2) | 2 << 24),
    ("nvmlDeviceGetGpuFabricInfo", _FabricInfo, 0),
)


def read_fabric(client: NvmlClient) -> Fabric:
    """The fabric, by the newest struct that the driver knows; every leaf is unsupported if there is no fabric."""
    missing = UNSUPPORTED
    for call, made, version in _FORMS:
        info = made(version=version) if version else made()
        try:
            client.call(call, client.handle, byref(info))
        except DriverError as error:
            missing = error.missing
            if error.code in (FUNCTION_NOT_FOUND, _VERSION_MISMATCH):
                continue
            client.note(error)
            break
        return _fabric(info)
    return Fabric(*[missing] * len(Fabric.__struct_fields__))


def _fabric(info: Any) -> Fabric:
    if info.state == 0:
        return Fabric(*[UNSUPPORTED] * len(Fabric.__struct_fields__))
    done = info.state == 3
    cluster = bytes(info.clusterUuid).hex()
    mask = getattr(info, "healthMask", 0)
    not_done = Missing("the fabric is not completed")
    bandwidth = {1: "degraded", 2: "full"}.get(mask & 3)
    return Fabric(
        state=word(info.state, FABRIC_STATES),
        # the status is valid only once the state is completed
        status=error_word(info.status) if done else not_done,
        clique_id=info.cliqueId if done else not_done,
        cluster_uuid="-".join((cluster[:8], cluster[8:12], cluster[12:16], cluster[16:20], cluster[20:]))
        if done
        else not_done,
        health_summary=word(getattr(info, "healthSummary", 0) or UNSUPPORTED, FABRIC_HEALTH),
        health_bandwidth=bandwidth or UNSUPPORTED,
        route_unhealthy=_mask_flag(mask, 4),
        access_timeout_recovery=_mask_flag(mask, 6),
        incorrect_configuration=word(mask >> 8 & 0xF or UNSUPPORTED, FABRIC_CONFIGURATION),
    )


def _mask_flag(mask: int, shift: int) -> bool | Missing:
    return {1: True, 2: False}.get(mask >> shift & 3, UNSUPPORTED)
