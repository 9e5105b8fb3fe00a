"""The JSON Schema is made of the structs, and what the last release promised in it still holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.report.report_schema import report_schema

# one line for each key of each object, with the values of an enumeration; lines are only ever added
RELEASED = Path(__file__).parent.parent / "golden" / "report_keys.txt"


def keys_of(schema: dict[str, Any]) -> set[str]:
    lines = set()
    for name, definition in schema["$defs"].items():
        lines |= {f"{name} = {value}" for value in definition.get("enum", ())}
        for key, value in definition.get("properties", {}).items():
            lines.add(f"{name}.{key}")
            lines |= {f"{name}.{key} = {each}" for each in value.get("enum", ())}
    return lines


def test_every_key_and_word_of_the_last_release_is_still_there() -> None:
    released = set(RELEASED.read_text(encoding="utf-8").splitlines())
    assert len(released) > 500
    assert sorted(released - keys_of(json.loads(report_schema()))) == []


@pytest.mark.parametrize("key", ["Report.verdict", "Finding.status", "Fault.explains", "Gpu.uuid"])
def test_the_promise_holds_what_programs_read(key: str) -> None:
    assert key in RELEASED.read_text(encoding="utf-8").splitlines()


def test_no_object_of_the_report_takes_a_key_that_it_does_not_name() -> None:
    schema = json.loads(report_schema())
    assert schema["$id"] == "gpudoctor.report/1"
    assert {"schema", "verdict", "checks", "faults", "counts"} <= set(schema["$defs"]["Report"]["required"])
