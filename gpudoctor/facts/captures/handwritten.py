"""A node that somebody wrote: keys that no fact has, and values that no machine can show.

Only such a file is refused for them: what a machine reads of itself may be wrong, and is then an unknown value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from gpudoctor.errors import nearest_names
from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.leaves import structs, unreadable
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.links import NO_LANES
from gpudoctor.facts.model.missing import NOT_READ, fill, known
from gpudoctor.facts.model.node import Node

_SIMILAR = 0.6
_MOST_NAMED = 3
_LONGEST_SHOWN = 60
_FILLED = replace(NOT_READ, kind="failed")


class _UnknownKey(NamedTuple):
    """A key that the struct at `place` does not have."""

    key: str
    place: str
    struct: msgspec.Struct

    @property
    def path(self) -> str:
        return f"{self.place}.{self.key[:_LONGEST_SHOWN]}"


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


def without_unknown_keys(raw: Any, node: Node) -> Node:
    """The node, with a note that names the keys of the file that it does not hold; `raw` is the file as plain data.

    Raise SourceError for the first one if leaves are missing too: gpudoctor writes all of them, and a newer one only
    adds keys, so that somebody wrote this file by hand and misspelt it.
    """
    keys = list(_unknown_keys(raw, node, "$"))
    if not keys:
        return node
    if _lacks_leaves(node):
        raise SourceError(
            f"no fact is called {keys[0].key[:_LONGEST_SHOWN]!r}{_nearest(keys[0])} - at `{keys[0].path}`"
        )
    named = ", ".join(each.path for each in keys[:_MOST_NAMED]) + (", ..." if len(keys) > _MOST_NAMED else "")
    note = f"left out what this version of gpudoctor has no fact for: {named}"
    return replace(node, source=replace(node.source, notes=(*node.source.notes, note)))


def _unknown_keys(raw: Any, read: Any, place: str) -> Iterator[_UnknownKey]:
    if isinstance(raw, list) and isinstance(read, tuple):
        for number, (one, other) in enumerate(zip(raw, read, strict=True)):
            yield from _unknown_keys(one, other, f"{place}[{number}]")
    elif isinstance(raw, dict) and isinstance(read, msgspec.Struct):
        fields = read.__struct_fields__
        for key, value in raw.items():
            if key in fields:
                yield from _unknown_keys(value, getattr(read, key), f"{place}.{key}")
            else:
                yield _UnknownKey(str(key), place, read)


def _lacks_leaves(node: Node) -> bool:
    whole = fill(node, _FILLED)
    return replace(whole, source=node.source) != node or any(fill(gpu, _FILLED) != gpu for gpu in node.gpus)


def _nearest(unknown: _UnknownKey) -> str:
    """`; did you mean ...?`: a key of the same struct, else of one in it; else where all of them are listed."""
    own = unknown.struct.__struct_fields__
    within = {
        f"{name}.{inner}": inner
        for name in own
        if isinstance(section := getattr(unknown.struct, name), msgspec.Struct)
        for inner in section.__struct_fields__
    }
    near = nearest_names(unknown.key, own, 1, _SIMILAR)
    if not near:
        inner_near = dict.fromkeys(nearest_names(unknown.key, within.values(), _MOST_NAMED, _SIMILAR))
        near = [path for name in inner_near for path, inner in within.items() if inner == name][:_MOST_NAMED]
    return f"; did you mean {' or '.join(near)}?" if near else "; every key: gpudoctor schema facts"


def refuse_contradictions(node: Node) -> None:
    """Raise SourceError for the first value that cannot be: with its place, the value, and what excludes it."""
    for place, gpu in enumerate(node.gpus):
        where = f"$.gpus[{place}]"
        for at, fact in structs(gpu, where):
            _refuse_pairs(at, fact)
        _refuse_sum(where, gpu)
        celsius = known(gpu.thermal.gpu_c)
        if celsius is not None and celsius < 0:  # NVML's temperature has no sign
            raise SourceError(f"gpu_c is {celsius}, below 0, which no driver can say - at `{where}.thermal`")
    count = known(node.driver.device_count)
    if count is not None and count < len(node.gpus):
        raise SourceError(f"device_count is {count}, but there are {len(node.gpus)} GPUs - at `$.driver.device_count`")
    for at, fact in structs(node):
        for name in fact.__struct_fields__:
            if (quoted := unreadable(fact, name, getattr(fact, name))) is not None:
                raise SourceError(f"{name} is {quoted}: out of range - at `{at}.{name}`")


def _refuse_pairs(where: str, fact: Any) -> None:
    for name, limit in _AT_MOST:
        value, most = (known(getattr(fact, field, None)) for field in (name, limit))
        if value is not None and most is not None and value > most and value not in NO_LANES:
            raise SourceError(f"{name} is {value}, more than {limit}, which is {most} - at `{where}.{name}`")


def _refuse_sum(where: str, gpu: Gpu) -> None:
    total, used, free = (known(size) for size in (gpu.memory_total_mib, gpu.memory_used_mib, gpu.memory_free_mib))
    if total is not None and used is not None and free is not None and used + free > total + _ROUNDING_MIB:
        raise SourceError(
            f"memory_used_mib {used} and memory_free_mib {free} are more than memory_total_mib {total} - at `{where}`"
        )
