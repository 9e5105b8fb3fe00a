"""Redacts an answer: hosts and files get placeholders, the same everywhere; texts lose what identifies a person."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TypeVar

import msgspec

from gpudoctor.diagnose.diagnosis import Diagnosis
from gpudoctor.facts.redaction.shapes import shapes_taken_out

T = TypeVar("T")


def redacted_diagnosis(answer: Diagnosis) -> Diagnosis:
    """The same answer without names of hosts, files, paths and addresses; ranks, lines and bus ids stay."""
    hosts = {host: f"host-{number}" for number, host in enumerate(_named(answer, "host", "than"), 1)}
    files = {file: f"file-{number}{PurePath(file).suffix[:8]}" for number, file in enumerate(_named(answer, "file"), 1)}
    names = sorted(hosts, key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(name) for name in names) or r"(?!)")
    return _replaced(answer, hosts, files, pattern)


def _named(thing: object, *fields: str) -> list[str]:
    found: dict[str, None] = {}

    def look(part: object) -> None:
        if isinstance(part, msgspec.Struct):
            for name in part.__struct_fields__:
                value = getattr(part, name)
                if name in fields and isinstance(value, str):
                    found[value] = None
                else:
                    look(value)
        elif isinstance(part, tuple):
            for item in part:
                look(item)

    look(thing)
    return list(found)


def _replaced(thing: T, hosts: dict[str, str], files: dict[str, str], pattern: re.Pattern[str]) -> T:
    if not isinstance(thing, msgspec.Struct):
        return thing
    changes: dict[str, object] = {}
    for name in thing.__struct_fields__:
        value = getattr(thing, name)
        if name in ("host", "than") and isinstance(value, str):
            changes[name] = hosts[value]
        elif name == "file" and isinstance(value, str):
            changes[name] = files[value]
        elif name in ("text", "reason") and isinstance(value, str):
            changes[name] = shapes_taken_out(pattern.sub(lambda found: hosts[found[0]], value))
        elif isinstance(value, tuple):
            changes[name] = tuple(_replaced(item, hosts, files, pattern) for item in value)
        elif isinstance(value, msgspec.Struct):
            changes[name] = _replaced(value, hosts, files, pattern)
    return msgspec.structs.replace(thing, **changes)
