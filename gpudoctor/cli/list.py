"""`gpudoctor list`: every check."""

from __future__ import annotations

import argparse

from gpudoctor.exits import OK, write_stdout


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gpudoctor list`."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Write id, level and title of each check. Raise UserError for a plugin that cannot be loaded."""
    from gpudoctor.plugins import all_checks

    checks = all_checks()
    if args.json:
        import msgspec

        rows = [{"id": c.id, "level": c.level, "title": c.title} for c in checks]
        write_stdout(msgspec.json.encode(rows).decode() + "\n")
        return OK
    width = max(len(c.id) for c in checks)
    write_stdout("".join(f"{c.id:<{width}}  {c.level:<8}  {c.title}\n" for c in checks))
    return OK
