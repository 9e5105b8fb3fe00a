"""Facts from dumps, leaf by leaf: merged, named as absent, rejected if no machine can have reported them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from operator import is_not
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.captures import ABSENT, clipped
from gpudoctor.facts.captures.nvidia_smi.query_gpu import CUT
from gpudoctor.facts.model.gpu import (
    Clocks,
    Ecc,
    Gpu,
    GpuPair,
    MemoryRepair,
    NvLink,
    PcieHop,
    PcieLink,
    Power,
    Thermal,
    ThrottleTimes,
    Utilization,
)
from gpudoctor.facts.model.links import ALL_INACTIVE
from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing
from gpudoctor.facts.model.node import Driver, Host, Variable

T = TypeVar("T")

# counters never decrease, and pending repairs persist until a reset: of two dumps, the worse one is the later one
_WORST = (Ecc, MemoryRepair, NvLink)
_UP = ("active", "OK")  # of two states of a link or pair, the other one counts
_BOTH = object()
_NOT_WORST = frozenset({"enabled", "pending", "banks_max_spare", "banks_high_spare"})
_Bounds = tuple[float, float]

# bounds for every number in these structs; bounds for single fields are below
_KINDS: dict[type, _Bounds] = {
    **dict.fromkeys((Driver, Ecc, Host, MemoryRepair, NvLink, PcieHop, PcieLink, ThrottleTimes), (0, 2**64)),
    Clocks: (0, 100_000),
    Power: (0, 100_000),
    Thermal: (-200, 200),  # as in the live reader: a broken sensor reads 255
    Utilization: (0, 100),
}
_OF_TOTAL = ("memory_reserved_mib", "memory_used_mib", "memory_free_mib")
_FIELDS: dict[type, dict[str, _Bounds]] = {
    PcieLink: {
        **dict.fromkeys(("generation", "generation_max", "device_generation_max", "host_generation_max"), (1, 10)),
        **dict.fromkeys(("width", "width_max"), (1, 32)),
    },
    PcieHop: dict.fromkeys(("width", "max_width"), (0, 255)),  # sysfs shows 0 or 255 if a port has no link
    Gpu: dict.fromkeys(("memory_total_mib", *_OF_TOTAL), (0, 2**26)),
    NvLink: {"speed_gb_s": (0, 10_000)},
}
_NOT_CLIPPED: dict[tuple[type, str], int] = {
    # a list cut in the middle would mean something else
    (Variable, "value"): 100_000,
    (Gpu, "cpu_affinity"): 10_000,
}
# part of a struct's identity, never Missing
_REQUIRED = {(NvLink, "link")}


def merged(one: T, other: T, conflicts: list[str], place: str = "") -> T:
    """Merge two facts. A value beats a gap; if two values differ, the first counts and `conflicts` gets an entry.

    Lists are joined by the required fields of their items. An error that a tool reported beats a value; a gap due to a
    truncated dump does not.
    """
    result: T = one if one == other else _merged(one, other, conflicts, place)
    return result


def _merged(one: Any, other: Any, conflicts: list[str], place: str) -> Any:
    if isinstance(one, Missing) or isinstance(other, Missing):
        return _known_one(one, other)
    if isinstance(one, Fact) and type(one) is type(other):
        news = {}
        for field in one.__struct_fields__:
            own, others = getattr(one, field), getattr(other, field)
            if own != others and (chosen := _of_two(one, field, own, others)) is not own:
                at = f"{place}.{field}" if place else field
                news[field] = merged(own, others, conflicts, at) if chosen is _BOTH else chosen
        return replace(one, **news) if news else one
    if isinstance(one, tuple) and isinstance(other, tuple):
        return _joined(one, other, conflicts, place)
    if one is None or other is None:
        return other if one is None else one
    conflicts.append(f"{place}: {str(one)[:60]} and {str(other)[:60]}")
    return one


def _of_two(fact: Fact, field: str, own: Any, others: Any) -> Any:
    """Which of two values of one field counts by itself, as the other one is a default or a better state; else both."""
    defaults = _defaults(type(fact))
    if field in defaults and defaults[field] in (own, others):
        return own if others == defaults[field] else others
    if isinstance(fact, _WORST) and field not in _NOT_WORST and {type(own), type(others)} <= {int, bool}:
        return max(own, others)
    if isinstance(fact, (NvLink, GpuPair)) and isinstance(own, str) and isinstance(others, str):
        if own in _UP:
            return others
        if others in _UP:
            return own
    return _BOTH


@cache
def _defaults(kind: type[Fact]) -> dict[str, Any]:
    return dict(zip(kind.__struct_fields__[::-1], kind.__struct_defaults__[::-1], strict=False))


def _known_one(one: Any, other: Any) -> Any:
    links = other if one == ALL_INACTIVE else one if other == ALL_INACTIVE else None
    if isinstance(links, tuple):  # as a list of inactive ones: the worse state counts
        return tuple(replace(link, state="inactive") for link in links)
    for gap in (NOT_READ, ABSENT, CUT):
        if one == gap:
            return other
        if other == gap:
            return one
    for value in (one, other):
        if isinstance(value, Missing) and value.kind == "failed":
            return value
    return other if isinstance(one, Missing) else one


def _joined(one: tuple[Any, ...], other: tuple[Any, ...], conflicts: list[str], place: str) -> tuple[Any, ...]:
    """Both lists without duplicates, the first one's items first."""
    found: dict[Any, Any] = {}
    for item in (*one, *other):
        key = _identity(item)
        found[key] = merged(found[key], item, conflicts, place) if key in found else item
    return tuple(found.values())


def _identity(item: Any) -> Any:
    if not isinstance(item, Fact):
        return item
    if isinstance(item, Variable):
        return item.name
    required = len(item.__struct_fields__) - len(item.__struct_defaults__)
    return tuple(getattr(item, field) for field in item.__struct_fields__[:required])


def structs(fact: Any, where: str = "$") -> Iterator[tuple[str, msgspec.Struct]]:
    """The struct and all below it, each with its place in the file: "$.gpus[2].pcie"."""
    if isinstance(fact, tuple):
        for number, item in enumerate(fact):
            yield from structs(item, f"{where}[{number}]")
    elif isinstance(fact, msgspec.Struct) and not isinstance(fact, Missing):
        yield where, fact
        for name in fact.__struct_fields__:
            yield from structs(getattr(fact, name), f"{where}.{name}")


def _changed(value: T, leaf: Callable[[Any, str, Any], Any], owner: Any = None, name: str = "") -> T:
    """The facts with each leaf as `leaf` returns it, which gets its struct and name, or None and "" in a list."""
    made: Any = value
    if value is None or value is True or value is False:
        return value
    if isinstance(value, tuple):
        items = [_changed(item, leaf) for item in value]
        made = tuple(items) if any(map(is_not, items, value)) else value
    elif isinstance(value, msgspec.Struct) and not isinstance(value, Missing):
        news = {}
        for field in value.__struct_fields__:
            old = getattr(value, field)
            if (new := _changed(old, leaf, value, field)) is not old:
                news[field] = new
        made = replace(value, **news) if news else value
    else:
        made = leaf(owner, name, value)
    result: T = made
    return result


def say_absent(value: T) -> T:
    """Replace every leaf that was not read with "not in this capture"."""
    return _changed(value, lambda _owner, _name, leaf: ABSENT if leaf == NOT_READ else leaf)


# What no machine can have reported: absurd numbers and endless strings.


def plausible(value: T) -> T:
    """The facts with impossible numbers replaced by a `Missing(failed)` that quotes them, and long strings clipped."""
    return _changed(value, _plausible)


def _plausible(owner: Any, name: str, value: Any) -> Any:
    if isinstance(value, Missing):
        reason = clipped(value.missing)
        return value if reason is value.missing else replace(value, missing=reason)
    if isinstance(value, str):
        return value if len(value) <= _NOT_CLIPPED.get((type(owner), name), 0) else clipped(value)
    quoted = unreadable(owner, name, value)
    return Missing(f"not understood: {name} reads {quoted}", "failed") if quoted else value


def unreadable(owner: Any, name: str, value: Any) -> str | None:
    """The number of a struct that no machine can have reported, as text; None for all other values."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    total = owner.memory_total_mib if name in _OF_TOTAL and isinstance(owner, Gpu) else None
    if isinstance(total, int) and 0 < total < value:
        return f"{value} of {total}"
    kind = type(owner)
    low, high = _FIELDS.get(kind, {}).get(name) or _KINDS.get(kind) or (value, value)
    return None if (kind, name) in _REQUIRED or low <= value <= high else str(value)
