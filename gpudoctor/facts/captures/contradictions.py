"""What no machine can show in a node that somebody wrote: one value, or two that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.leaves import plausible
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node

# within a struct, the first is never more than the second
_AT_MOST = (
    ("memory_reserved_mib", "memory_total_mib"),
    ("memory_used_mib", "memory_total_mib"),
    ("memory_free_mib", "memory_total_mib"),
    ("generation", "generation_max"),
    ("generation_max", "device_generation_max"),
    ("generation_max", "host_generation_max"),
    ("width", "width_max"),
    ("width", "max_width"),
    ("speed_gt_s", "max_speed_gt_s"),
    ("min_limit_w", "max_limit_w"),
)
_ROUNDING_MIB = 2  # used and free are rounded one by one
_NO_LINK = (0, 255)  # what sysfs shows of a port without a link


def refuse_contradictions(node: Node) -> None:
    """Raise SourceError for the first value that cannot be: with its place, the value, and what excludes it.

    Only for nodes that somebody wrote: what a machine reads of itself may be wrong, and is then an unknown value.
    """
    for place, gpu in enumerate(node.gpus):
        for where, fact in _structs(gpu, f"$.gpus[{place}]"):
            _refuse_pairs(where, fact)
        _refuse_sum(f"$.gpus[{place}]", gpu)
        celsius = known(gpu.thermal.gpu_c)
        if celsius is not None and celsius < 0:  # NVML's temperature has no sign
            raise SourceError(f"gpu_c is {celsius}, below 0, which no driver can say - at `$.gpus[{place}].thermal`")
    _refuse_count(node)
    _refuse_impossible(node, plausible(node), "$")


def _structs(fact: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The struct and those below it, with their places."""
    if isinstance(fact, tuple):
        for place, item in enumerate(fact):
            yield from _structs(item, f"{where}[{place}]")
    elif isinstance(fact, msgspec.Struct) and not isinstance(fact, Missing):
        yield where, fact
        for name in fact.__struct_fields__:
            yield from _structs(getattr(fact, name), f"{where}.{name}")


def _refuse_pairs(where: str, fact: Any) -> None:
    for name, limit in _AT_MOST:
        value, most = (known(getattr(fact, field, None)) for field in (name, limit))
        if value is not None and most is not None and value > most and value not in _NO_LINK:
            raise SourceError(f"{name} is {value}, more than {limit}, which is {most} - at `{where}.{name}`")


def _refuse_sum(where: str, gpu: Gpu) -> None:
    total, used, free = (known(size) for size in (gpu.memory_total_mib, gpu.memory_used_mib, gpu.memory_free_mib))
    if total is not None and used is not None and free is not None and used + free > total + _ROUNDING_MIB:
        raise SourceError(
            f"memory_used_mib {used} and memory_free_mib {free} are more than memory_total_mib {total} - at `{where}`"
        )


def _refuse_count(node: Node) -> None:
    count = known(node.driver.device_count)
    if count is not None and count < len(node.gpus):
        raise SourceError(f"device_count is {count}, but there are {len(node.gpus)} GPUs - at `$.driver.device_count`")


def _refuse_impossible(value: Any, read: Any, where: str) -> None:
    """Raise for the first leaf that was read as impossible, of facts and what `plausible` made of them."""
    if value is read or isinstance(value, Missing):
        return
    if isinstance(read, Missing):
        raise SourceError(f"{where.rpartition('.')[2]} is {value}: out of range - at `{where}`")
    if isinstance(value, tuple):
        for place, (one, other) in enumerate(zip(value, read, strict=True)):
            _refuse_impossible(one, other, f"{where}[{place}]")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _refuse_impossible(getattr(value, name), getattr(read, name), f"{where}.{name}")
