"""`gpudoctor facts`: the facts as JSON, unjudged."""

from __future__ import annotations

import argparse

import msgspec

from gpudoctor.cli.options import (
    facts_deadline_option,
    output_option,
    read_source,
    redact_option,
    source_options,
    write_output,
)
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import OK
from gpudoctor.text.json_text import json_document

with lazy_imports():
    from gpudoctor.facts.model import node
    from gpudoctor.facts.redaction import redact


def add_options(parser: argparse.ArgumentParser) -> None:
    source_options(parser)
    redact_option(parser)
    output_option(parser, "write to FILE, atomically")
    facts_deadline_option(parser)


def run(args: argparse.Namespace) -> int:
    """Read and write the facts. Raise UserError."""
    read = read_source(args).node
    write_output(json_document(msgspec.Raw(node.to_json(redact.redacted(read) if args.redact else read))), args)
    return OK
