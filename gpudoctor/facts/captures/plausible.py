"""Reject values from untrusted files that no machine can have reported: absurd numbers and endless strings."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from gpudoctor.facts.captures import clipped
from gpudoctor.facts.model.gpu import (
    Clocks,
    Ecc,
    Gpu,
    MemoryRepair,
    NvLink,
    PcieHop,
    PcieLink,
    Power,
    Thermal,
    ThrottleTimes,
    Utilization,
)
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, Host, Variable

T = TypeVar("T")

_Bounds = tuple[float, float]

_COUNT: _Bounds = (0, 2**64)
# bounds for every number in these structs; bounds for single fields are below
_KINDS: dict[type, _Bounds] = {
    Clocks: (0, 100_000),
    Driver: _COUNT,
    Ecc: _COUNT,
    Host: _COUNT,
    MemoryRepair: _COUNT,
    NvLink: _COUNT,
    PcieHop: _COUNT,
    PcieLink: _COUNT,
    Power: (0, 100_000),
    Thermal: (-200, 200),  # as in the live reader: a broken sensor reads 255
    ThrottleTimes: _COUNT,
    Utilization: (0, 100),
}
_GENERATION, _MEMORY_MIB = (1, 10), (0, 2**26)
_FIELDS: dict[tuple[type, str], _Bounds] = {
    (PcieLink, "generation"): _GENERATION,
    (PcieLink, "generation_max"): _GENERATION,
    (PcieLink, "device_generation_max"): _GENERATION,
    (PcieLink, "host_generation_max"): _GENERATION,
    (PcieLink, "width"): (1, 32),
    (PcieLink, "width_max"): (1, 32),
    (PcieHop, "width"): (0, 255),  # sysfs shows 0 or 255 if a port has no link
    (PcieHop, "max_width"): (0, 255),
    (Gpu, "memory_total_mib"): _MEMORY_MIB,
    (Gpu, "memory_reserved_mib"): _MEMORY_MIB,
    (Gpu, "memory_used_mib"): _MEMORY_MIB,
    (Gpu, "memory_free_mib"): _MEMORY_MIB,
    (NvLink, "speed_gb_s"): (0, 10_000),
}
_NOT_CLIPPED: dict[tuple[type, str], int] = {
    # a list cut in the middle would mean something else
    (Variable, "value"): 100_000,
    (Gpu, "cpu_affinity"): 10_000,
}
# part of a struct's identity, never Missing
_REQUIRED = {(NvLink, "link")}


def plausible(value: T) -> T:
    """The facts with impossible numbers replaced by a `Missing(failed)` that quotes them, and long strings clipped."""
    made: Any = value
    if isinstance(value, str):
        made = clipped(value)
    elif isinstance(value, tuple):
        made = tuple(plausible(item) for item in value)
    elif isinstance(value, msgspec.Struct):
        kind = type(value)
        news = {}
        for name in value.__struct_fields__:
            old = getattr(value, name)
            new = _field(kind, name, old)
            if new is not old:
                news[name] = new
        if isinstance(value, Gpu):
            news |= _more_than_all(value)
        made = msgspec.structs.replace(value, **news) if news else value
    result: T = made
    return result


def _more_than_all(gpu: Gpu) -> dict[str, Missing]:
    """A Missing for each memory figure that exceeds the total."""
    total = gpu.memory_total_mib
    return {
        name: Missing(f"not understood: {name} reads {size} of {total}", "failed")
        for name in ("memory_reserved_mib", "memory_used_mib", "memory_free_mib")
        if isinstance(size := getattr(gpu, name), int) and isinstance(total, int) and 0 < total < size
    }


def _field(kind: type, name: str, value: Any) -> Any:
    place = (kind, name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = _FIELDS.get(place) or _KINDS.get(kind) or (None, None)
        if low is None or high is None or place in _REQUIRED or low <= value <= high:
            return value
        return Missing(f"not understood: {name} reads {value}", "failed")
    if isinstance(value, str) and len(value) <= _NOT_CLIPPED.get(place, 0):
        return value
    return plausible(value)
