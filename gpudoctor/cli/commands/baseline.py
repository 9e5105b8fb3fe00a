"""`gpudoctor baseline save` and `baseline compare`: one node over time."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpudoctor import __version__
from gpudoctor.cli import options
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import OK
from gpudoctor.text.json_text import json_line
from gpudoctor.text.output import printable, write_stdout

with lazy_imports():
    from gpudoctor.cluster.baseline import compare, runs


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the commands save and compare; `action` will hold the chosen one."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="COMMAND")
    text = "add a healthy run to the baseline of its node; a file that is there must be of the same node"
    save = commands.add_parser("save", help=text, description=text, allow_abbrev=False)
    _report_options(save)
    save.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the baseline (default: gpudoctor-baseline-HOST.json here)"
    )
    text = "say what is not as in the baseline: a loss of 5 % warns and of 10 % fails, once three runs are saved"
    compare = commands.add_parser("compare", help=text.replace("%", "%%"), description=text, allow_abbrev=False)
    compare.add_argument("baseline", type=Path, metavar="BASELINE", help="what baseline save wrote")
    _report_options(compare)
    options.add_output(compare, "write the comparison to FILE, atomically")
    options.add_formats(compare, "text", "json")
    options.add_color(compare)
    compare.epilog = (
        "exit codes: 0 no failure, 1 a failure, 2 gpudoctor could not do its work, 3 nothing of what was saved was "
        "measured now, or the report itself is unknown"
    )


def _report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", nargs="?", metavar="REPORT", help="a report of check --json; - for stdin")
    options.add_node(parser, "instead of a report: check this source at level quick (see check --node)")
    options.add_fault(parser, "put a fault on the source")


def run(args: argparse.Namespace) -> int:
    """Save or compare; return the exit code. Raise UserError for unreadable files and runs of different nodes."""
    request = options.request_from(args, runs.BaselineRequest)
    if args.action == "save":
        write_stdout(runs.save_run(request, args.output))
        return OK
    comparison = runs.compare_run(request, args.baseline)
    if args.format == "json":
        options.write_output(json_line(comparison), args)
    else:
        color = options.output_color(args.color, to_file=options.to_file(args))
        options.write_output(compare.render_comparison(comparison, width=options.terminal_width(), color=color), args)
    return comparison.exit_code


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """Write the error as a JSON document if JSON was requested; return the exit code."""
    if args.action == "compare" and args.format == "json":
        place, reported = args.report or args.node or "", printable(message)
        nothing = compare.Comparison(
            "gpudoctor.comparison/1", __version__, "", False, 0, place, "unknown", code, error=reported
        )
        options.write_error_document(json_line(nothing), args)
    return code
