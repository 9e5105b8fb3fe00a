"""Merge the facts about one thing from several dumps, leaf by leaf."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from gpudoctor.facts.captures import ABSENT
from gpudoctor.facts.captures.nvidia_smi.query_dump import CUT
from gpudoctor.facts.model.gpu import Ecc, MemoryRepair
from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing
from gpudoctor.facts.model.node import Variable

T = TypeVar("T")

_GAPS = (NOT_READ, ABSENT)
# counters never decrease, and pending repairs persist until a reset: of two dumps, the worse one is the later one
_WORST = (Ecc, MemoryRepair)
_NOT_WORST = frozenset({"enabled", "pending", "banks_max_spare", "banks_high_spare"})


def merged(one: T, other: T, conflicts: list[str], place: str = "") -> T:
    """Merge two facts. A value beats a gap; if two values differ, the first counts and `conflicts` gets an entry.

    Lists are joined by the required fields of their items. An error that a tool reported beats a value; a gap due to a
    truncated dump does not.
    """
    made: Any = one
    result: T = made if one == other else _merged(one, other, conflicts, place)
    return result


def _merged(one: Any, other: Any, conflicts: list[str], place: str) -> Any:
    if isinstance(one, Missing) or isinstance(other, Missing):
        return _known_one(one, other)
    if isinstance(one, Fact) and type(one) is type(other):
        defaults = dict(zip(one.__struct_fields__[::-1], one.__struct_defaults__[::-1], strict=False))
        news = {}
        for field in one.__struct_fields__:
            mine, theirs = getattr(one, field), getattr(other, field)
            if mine == theirs:
                continue
            if field in defaults and theirs == defaults[field]:
                continue
            if field in defaults and mine == defaults[field]:
                news[field] = theirs
            elif isinstance(one, _WORST) and field not in _NOT_WORST and {type(mine), type(theirs)} <= {int, bool}:
                news[field] = max(mine, theirs)
            else:
                news[field] = merged(mine, theirs, conflicts, f"{place}.{field}" if place else field)
        return msgspec.structs.replace(one, **news) if news else one
    if isinstance(one, tuple) and isinstance(other, tuple):
        return _joined(one, other, conflicts, place)
    if one is None or other is None:
        return other if one is None else one
    conflicts.append(f"{place}: {str(one)[:60]} and {str(other)[:60]}")
    return one


def _known_one(one: Any, other: Any) -> Any:
    for gap in (*_GAPS, CUT):
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
