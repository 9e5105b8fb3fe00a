"""The report as JSON: one document, keys as in `schema.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpudoctor.json_text import json_line
from gpudoctor.report.model import Report


def render_json(report: Report) -> str:
    """One line of JSON, ending in a newline."""
    return json_line(report)


def schema_from_structs() -> str:
    """JSON Schema of the report as the structs have it; `schema.json` is this text, kept by a test."""
    schema = {"$id": "gpudoctor.report/1", **msgspec.json.schema(Report)}
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


def shipped_schema() -> str:
    """JSON Schema of the report as it ships beside this module."""
    return (Path(__file__).parent / "schema.json").read_text(encoding="utf-8")
