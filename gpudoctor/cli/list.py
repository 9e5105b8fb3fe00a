"""`gpudoctor list`: prints every check."""

from __future__ import annotations

import argparse

import msgspec

from gpudoctor.exit_codes import OK
from gpudoctor.lazy_import import lazy_imports
from gpudoctor.output import printable, write_stdout

with lazy_imports():
    from gpudoctor.checks.core import registry


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Write id, level and title of each check. Raise UserError for a plugin that cannot be loaded."""
    checks = registry.all_checks()
    if args.json:
        rows = [{"id": c.id, "level": c.level, "title": c.title} for c in checks]
        write_stdout(msgspec.json.encode(rows).decode() + "\n")
        return OK
    width = max(len(c.id) for c in checks)
    write_stdout("".join(f"{c.id:<{width}}  {c.level:<8}  {c.title}\n" for c in checks))
    return OK


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """Write the error as a JSON object if JSON was requested; return the exit code."""
    if args.json:
        write_stdout(msgspec.json.encode({"error": printable(message)}).decode() + "\n")
    return code
