"""`gpudoctor schema`: prints the JSON Schema of the documents that gpudoctor writes and reads."""

from __future__ import annotations

import argparse
from importlib import import_module

import msgspec

from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import OK
from gpudoctor.text.json_text import json_document
from gpudoctor.text.output import write_stdout

with lazy_imports():
    from gpudoctor.report import report_schema

# the other documents, and their types
_TYPES = {
    "facts": ("gpudoctor.facts.model.node", "Node"),
    "config": ("gpudoctor.api.config", "Config"),
    "cluster": ("gpudoctor.cluster.check.model", "ClusterReport"),
    "fleet": ("gpudoctor.cluster.fleet.model", "Fleet"),
    "comparison": ("gpudoctor.cluster.baseline.compare", "Comparison"),
    "plan": ("gpudoctor.plan.model", "Plan"),
    "run": ("gpudoctor.run.report", "RunReport"),
    "diagnosis": ("gpudoctor.diagnose.diagnosis", "Diagnosis"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    documents = ("report", *_TYPES)
    parser.add_argument(
        "of", nargs="?", choices=documents, default="report", metavar="DOCUMENT", help=", ".join(documents)
    )


def run(args: argparse.Namespace) -> int:
    """Write the schema."""
    if args.of == "report":
        write_stdout(report_schema.report_schema())
        return OK
    module, name = _TYPES[args.of]
    write_stdout(json_document(msgspec.json.schema(getattr(import_module(module), name))))
    return OK
