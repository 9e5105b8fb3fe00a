"""The report as JSON: one document, keys as in `schema.json`."""

from __future__ import annotations

import msgspec

from gpudoctor.report.report import Report


def render_json(report: Report) -> str:
    """One line of JSON, ending in a newline; `jq .` makes it pretty, logs want it on one line."""
    return msgspec.json.encode(report).decode() + "\n"


def report_schema() -> dict[str, object]:
    """JSON Schema of the report, made from the structs themselves."""
    schema = msgspec.json.schema(Report)
    schema["$id"] = "gpudoctor.report/1"
    return schema
