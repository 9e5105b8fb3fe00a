"""`gpudoctor facts`: the facts as JSON, unjudged."""

from __future__ import annotations

import argparse

import msgspec

from gpudoctor.cli import options
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import OK
from gpudoctor.text.json_text import json_document

with lazy_imports():
    from gpudoctor.facts.model import node
    from gpudoctor.facts.redaction import redact


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_source(parser)
    options.add_redact(parser)
    options.add_output(parser, "write to FILE, atomically")
    options.add_facts_deadline(parser)


def run(args: argparse.Namespace) -> int:
    """Read and write the facts. Raise UserError."""
    read = options.read_source(args).node
    options.write_output(json_document(msgspec.Raw(node.to_json(redact.redacted(read) if args.redact else read))), args)
    return OK
