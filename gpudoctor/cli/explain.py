"""`gpudoctor explain`: the page of a check, or of a cause that `gpudoctor diagnose` names."""

from __future__ import annotations

import argparse

from gpudoctor.errors import UserError
from gpudoctor.exits import OK, write_stdout
from gpudoctor.lazy_import import lazy_imports

with lazy_imports():
    from gpudoctor.checks.core import registry
    from gpudoctor.diagnose import causes
    from gpudoctor.report import check_docs
    from gpudoctor.run.findings import run_check


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")


def run(args: argparse.Namespace) -> int:
    """Write the pages of the checks that match the id. Raise UserError if none does."""
    if args.id.startswith("diagnose."):
        write_stdout(_page_of_cause(args.id))
        return OK
    checks = (*registry.all_checks(), *(run_check.run_checks() if args.id.startswith("run") else ()))
    for check in registry.select(checks, [args.id]):
        write_stdout(check_docs.page_text(check))
    return OK


def _page_of_cause(name: str) -> str:
    page = causes.page_of(name)
    if page is None:
        names = ", ".join(f"diagnose.{known}" for known in causes.page_names())
        raise UserError(f"{name}: no such page; there are {names}, and one for each word of cause.what")
    return page
