"""Configuration that differs from the majority of the nodes of one kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

MIN_NODES = 3


class Other(msgspec.Struct, frozen=True):
    """A value that is not the majority's, and who has it."""

    value: str
    nodes: tuple[str, ...]


class ConfigDrift(msgspec.Struct, frozen=True):
    """An item in which nodes of one kind differ.

    `majority` is what more than half of the `told` nodes have (those that say it at all), `agreeing` how many; None
    where no value has so many: then nobody is odd, and `others` holds all values.
    """

    kind: str
    item: str
    majority: str | None
    agreeing: int
    told: int
    others: tuple[Other, ...]


Configurations = Mapping[str, Iterable[tuple[str, str]]]


def drifts(kind: str, configurations: Configurations) -> list[ConfigDrift]:
    """The items in which nodes (by name) of a kind differ; an item that fewer than 3 of them tell has no majority."""
    by_item: dict[str, dict[str, list[str]]] = {}
    for name, configuration in configurations.items():
        for item, value in configuration:
            by_item.setdefault(item, {}).setdefault(value, []).append(name)
    found = []
    for item, values in by_item.items():
        told = sum(len(names) for names in values.values())
        if len(values) < 2 or told < MIN_NODES:
            continue
        most = max(values, key=lambda value: len(values[value]))
        agreeing = len(values[most]) if len(values[most]) * 2 > told else 0
        others = [(value, names) for value, names in values.items() if not agreeing or value != most]
        others.sort(key=lambda other: (-len(other[1]), other[0]))
        odd = tuple(Other(value, tuple(sorted(names))) for value, names in others)
        found.append(ConfigDrift(kind, item, most if agreeing else None, agreeing, told, odd))
    return found
