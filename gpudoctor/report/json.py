"""The report as JSON: one document, keys as `gpudoctor schema report` says."""

from __future__ import annotations

import msgspec

from gpudoctor.json_text import json_line
from gpudoctor.report.model import Report


def render_json(report: Report) -> str:
    """One line of JSON, ending in a newline."""
    return json_line(report)


def report_schema() -> str:
    """JSON Schema of the report, made of the structs that it is written from."""
    schema = {"$id": "gpudoctor.report/1", **msgspec.json.schema(Report)}
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"
