"""`gpudoctor bundle`: what a vendor or a bug report needs to know about a node, in one archive."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpudoctor.cli import options
from gpudoctor.errors import UserError
from gpudoctor.facts.model.missing import known
from gpudoctor.lazy import lazy_imports, lazy_pattern
from gpudoctor.process.exit_codes import OK
from gpudoctor.text.output import is_terminal, printable, write_stdout

with lazy_imports():
    from gpudoctor.facts.captures import archives
    from gpudoctor.report import bundle_files, output_files

if TYPE_CHECKING:
    from gpudoctor.facts.model.node import Node

_NO_FILE_NAME = lazy_pattern(r"[^A-Za-z0-9._-]+")
_LONGEST_HOST = 64


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_source(parser)
    options.add_redact(parser)
    options.add_output(parser, "default: gpudoctor-HOST-DATE.tar.gz here; never replaces one; - for stdout")
    options.add_facts_deadline(parser)


def run(args: argparse.Namespace) -> int:
    """Write the archive and print its path. Raise UserError if that file exists already."""
    to_stdout = str(args.output) in ("-", "/dev/stdout")
    if to_stdout and is_terminal(sys.stdout):
        raise UserError("an archive is nothing for a terminal: -o FILE, or send it on: -o - | ...")
    made_s = time.time()
    node = options.read_source(args).node
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(made_s))
    files = bundle_files.files_of(node, redact=args.redact, made_s=made_s, argv=tuple(args.argv))
    archive = archives.pack(files, int(made_s))
    if to_stdout:
        write_stdout(archive)
        return OK
    path = args.output or Path(f"gpudoctor-{_host(node, args.redact)}-{stamp}.tar.gz")
    output_files.write_new_file(path, archive)
    write_stdout(f"{printable(str(path))}\n")
    return OK


def _host(node: Node, redact: bool) -> str:
    if redact:
        return "redacted"
    name = known(node.host.hostname) or node.source.name or "node"
    return _NO_FILE_NAME.sub("-", name).strip("-.")[:_LONGEST_HOST] or "node"
