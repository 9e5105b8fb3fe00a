"""`gpudoctor run -- COMMAND`: the user's own training, watched and judged."""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

from gpudoctor.cli import options
from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import FAILED
from gpudoctor.process.signals import ignored_at_start
from gpudoctor.text.json_text import json_document
from gpudoctor.text.output import say, write_stderr

with lazy_imports():
    from gpudoctor.process import foreground
    from gpudoctor.report import output_files
    from gpudoctor.run import command, html, report, text

_WIDEST = 120


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "gpudoctor run [options] -- COMMAND [ARGUMENTS]"
    parser.epilog = (
        "exit code: that of the command, and its signal; 127 if it does not exist, 126 if it may not run; 1 if "
        "--require-fit has refused to start it"
    )
    parser.add_argument(
        "--precheck", choices=("quick", "standard", "none"), default="quick", help="check of the node before (quick)"
    )
    parser.add_argument("--require-fit", action="store_true", help="do not start the command if that check fails")
    parser.add_argument("--no-env", action="store_true", help="set no variables that make failures readable")
    parser.add_argument("--no-observer", action="store_true", help="load nothing into the ranks: no steps, no causes")
    parser.add_argument(
        "--hang-after", type=options.seconds, dest="hang_after_s", metavar="SECONDS",
        help="describe where the ranks stand after so long without progress (10 x the median step, at least 120)",
    )  # fmt: skip
    parser.add_argument("--on-hang", choices=("report", "end"), default="report", help="and end the command (report)")
    parser.add_argument(
        "--on-exit", choices=("leave", "end"), default="leave", help="if gpudoctor itself is killed (leave it running)"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep logs, stacks and dumps of the ranks in it")
    options.add_formats(parser, "text", "json", "html")
    options.add_output(parser, "also write the report to FILE; %%h in its name is this host")
    parser.set_defaults(program=[])


def run(args: argparse.Namespace) -> int:
    """Run the command and write its report; return its exit code, or end by its signal."""
    if not args.program:
        raise UserError("a command is needed after --, as in: gpudoctor run -- torchrun --nproc-per-node 4 train.py")
    output = _output(args)
    request = options.request_from(args, command.RunRequest, command=args.program)
    try:
        finished = command.run(request, ignored=ignored_at_start(), say=say)
    except command.NodeNotFitError as error:
        say(f"error: {error}")
        return FAILED
    if finished.report is not None:
        _write(args, output, finished.report)
    if finished.returncode < 0:
        foreground.end_by_signal(-finished.returncode)
    return finished.returncode


def _output(args: argparse.Namespace) -> Path | None:
    if args.output is None:
        if args.format not in (None, "text"):
            raise UserError(f"--format {args.format} needs -o FILE: stdout belongs to the command")
        return None
    host = os.environ.get("GPUDOCTOR_NODE_NAME") or platform.node()
    return Path(str(args.output).replace("%h", host))


def _write(args: argparse.Namespace, output: Path | None, made: report.RunReport) -> None:
    """The text on stderr, and the file; what cannot be written is said, and changes no exit code."""
    width = min(options.terminal_width(), _WIDEST)
    write_stderr("\n" + text.render_text(made, width=width))
    if output is not None:
        try:
            output_files.write_file(output, _rendered(args, made))
        except UserError as error:
            say(f"error: {error}")


def _rendered(args: argparse.Namespace, made: report.RunReport) -> str:
    if args.format == "json":
        return json_document(made)
    return html.render_html(made) if args.format == "html" else text.render_text(made)
