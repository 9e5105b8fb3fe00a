"""`gpudoctor explain`: the page of a check."""

from __future__ import annotations

import argparse

from gpudoctor.exits import OK, write_stdout


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gpudoctor explain`."""
    parser.add_argument("id", metavar="ID")


def run(args: argparse.Namespace) -> int:
    """Write the pages of the checks that the word names. Raise UserError if it names none."""
    from gpudoctor.checks.core.registry import select
    from gpudoctor.plugins import all_checks
    from gpudoctor.report.check_docs import page_text

    for check in select(all_checks(), [args.id]):
        write_stdout(page_text(check))
    return OK
