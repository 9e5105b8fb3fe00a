"""`gpudoctor list`: prints every check, or some."""

from __future__ import annotations

import argparse

import msgspec

from gpudoctor.cli import options
from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import OK
from gpudoctor.text.output import printable, write_stdout

with lazy_imports():
    from gpudoctor.checks.core import registry
    from gpudoctor.report import text

write_error = options.write_error_object


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="ID|DOMAIN|WORD", help="only these; a word is looked for in titles")
    parser.add_argument("--level", choices=options.LEVELS, help="only the checks of this level")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Write id, level and title of each check. Raise UserError for a plugin that cannot be loaded."""
    checks = [
        check
        for check in registry.all_checks()
        if args.level in (None, check.level) and (not args.words or any(_names(word, check) for word in args.words))
    ]
    if args.words and not checks:
        at_level = f" at level {args.level}" if args.level else ""
        raise UserError(f"no check{at_level} has {' or '.join(map(printable, args.words))} in its id or title")
    if args.json:
        rows = [{"id": c.id, "level": c.level, "title": c.title} for c in checks]
        write_stdout(msgspec.json.encode(rows).decode() + "\n")
        return OK
    write_stdout(text.columns([(c.id, c.level, c.title) for c in checks], width=options.terminal_width()))
    return OK


def _names(word: str, check: registry.Check) -> bool:
    return registry.matches(check, word) or word.lower() in f"{check.id} {check.title}".lower()
