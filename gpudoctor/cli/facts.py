"""`gpudoctor facts`: the facts as JSON, unjudged."""

from __future__ import annotations

import argparse

from gpudoctor.cli.options import (
    facts_deadline_option,
    output_option,
    read_source,
    redact_option,
    source_options,
    write_output,
)
from gpudoctor.exits import OK


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gpudoctor facts`."""
    source_options(parser)
    redact_option(parser)
    output_option(parser, "write to FILE, atomically")
    facts_deadline_option(parser)


def run(args: argparse.Namespace) -> int:
    """Read the facts and write them. Raise UserError."""
    import msgspec

    from gpudoctor.facts.model.node import to_json
    from gpudoctor.facts.redaction.redact import redacted
    from gpudoctor.json_text import terminal_safe

    node = read_source(args).node
    data = msgspec.json.format(to_json(redacted(node) if args.redact else node), indent=2)
    write_output(terminal_safe(data).decode() + "\n", args)
    return OK
