"""The JSON Schema of a report, with what its keys mean."""

from __future__ import annotations

import msgspec

from gpudoctor.report.model import Report
from gpudoctor.text.json_text import json_document

# what the keys mean, for those who read the schema without this package
_DESCRIBED = {
    "schema": "The form of this document; keys are only ever added.",
    "tool": "What wrote it.",
    "run": "When, how deep and from which source it was judged.",
    "host": "The machine.",
    "gpus": "Every GPU that the source shows, in the order of bus ids.",
    "profile": "What the node was judged against.",
    "verdict": "The worst of all checks: fail, unknown, warn, pass.",
    "exit_code": "Of the command: 0 no failure, 1 failure, 2 could not do its work, 3 unknown.",
    "reason": "One line of at most 100 characters without quotes, fit for a Slurm drain reason.",
    "counts": "Checks by status; one that warns of one GPU and is unknown for another counts as both.",
    "checks": "Every check with its findings, also those that were skipped.",
    "faults": "Failed findings that nothing else explains: what people count and mend.",
    "measurements": "Figures of the probes; empty at level quick.",
    "simulated": "Whether the node is made up.",
    "error": "Why gpudoctor could not do its work; then nothing was judged.",
    "facts": "The facts that were judged, with --include-facts.",
    "evaluated": "How many of the checks that were asked for had something to look at.",
}


def report_schema() -> str:
    """JSON Schema of the report, generated from its structs."""
    schema = {"$id": "gpudoctor.report/1", **msgspec.json.schema(Report)}
    properties = schema["$defs"]["Report"]["properties"]
    for name, text in _DESCRIBED.items():
        properties[name] = {"description": text, **properties[name]}
    return json_document(schema)
