"""`gpudoctor status`: one line a GPU, with the verdict of the quick checks; `--watch` repeats it."""

from __future__ import annotations

import argparse
import os
import sys
import time

import msgspec

from gpudoctor.cli import options
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import OK
from gpudoctor.process.signals import InterruptedBySignal
from gpudoctor.text.output import is_terminal, write_stdout

with lazy_imports():
    from gpudoctor.api import node_check
    from gpudoctor.cli import keys
    from gpudoctor.facts.nvml import collector_ahead, fake_driver_context
    from gpudoctor.report import model, status_table

_CLEAR = "\x1b[H\x1b[2J"


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_source(parser)
    parser.add_argument(
        "--watch",
        nargs="?",
        type=options.seconds_between(0.5, 3600),
        const=2.0,
        metavar="SECONDS",
        help="look again every so many seconds (2), until q or Ctrl-C",
    )
    parser.add_argument("--json", action="store_true", help="the report of the quick checks, with the facts")
    options.add_facts_deadline(parser, "for reading the facts (default 60)")
    options.add_color(parser)
    parser.epilog = "exit codes: as those of gpudoctor check --level quick; with --watch 0"


def run(args: argparse.Namespace) -> int:
    """Write the table, and again for `--watch`; return the exit code of the quick checks. Raise UserError."""
    if args.watch is None:
        return _show(args)
    try:
        with keys.key_reader() as pressed:
            while True:
                _show(args)
                if pressed(args.watch) == "q":
                    return OK
    except InterruptedBySignal as stop:
        if stop.number != 2:
            raise
        return OK


def _show(args: argparse.Namespace) -> int:
    if args.node is None and not args.faults:
        collector_ahead.order_ahead(fake_driver_context.root_of(os.environ))
    prep = node_check.prepare(options.request_from(args, node_check.CheckRequest, level="quick", include_facts=True))
    report = node_check.run_prepared(prep, argv=args.argv)
    if args.json:
        write_stdout(model.render_json(report))
        return report.exit_code
    color = options.output_color(args.color, to_file=False)
    assert not isinstance(report.facts, msgspec.UnsetType)
    text = status_table.status_text(report, report.facts, width=options.terminal_width(), color=color)
    if args.watch is not None:  # a time above, an empty line below: frames stay apart in a pipe as well
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        leave = "; q or Ctrl-C leaves" if is_terminal(sys.stdin) else ""
        clear = _CLEAR if is_terminal(sys.stdout) else ""
        text = f"{clear}{now}, every {args.watch:g} s{leave}\n{text}\n"
    write_stdout(text)
    return report.exit_code


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """Write the error as a report if JSON was requested; return the exit code."""
    if args.json:
        nothing = node_check.nothing_read(args.node)
        source = model.SourceSummary(nothing.source.kind, nothing.source.name)
        begun = model.Run("", "", 0.0, "quick", source, tuple(args.argv))
        write_stdout(model.render_json(model.error_report(begun, message, code)))
    return code
