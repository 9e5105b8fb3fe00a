"""`gpudoctor diagnose`: what happened first in a failed or hanging job, where, and why."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import msgspec

from gpudoctor.cli.options import output_option, redact_option, seconds
from gpudoctor.diagnose.build import diagnose, stalled
from gpudoctor.diagnose.diagnosis import Diagnosis
from gpudoctor.diagnose.gather import Gathered, gather
from gpudoctor.diagnose.node_reports import read_reports
from gpudoctor.diagnose.sources import find_sources
from gpudoctor.diagnose.text import render_text
from gpudoctor.errors import UserError
from gpudoctor.exits import COULD_NOT, FAILED, OK, UNKNOWN, is_terminal, say, write_stdout
from gpudoctor.json_text import terminal_safe
from gpudoctor.report.output_files import write_file

_CODES = {"cause": FAILED, "unknown": UNKNOWN, "nothing": OK}


def add_diagnose_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = "exit codes: 0 nothing wrong found, 1 a cause found, 2 nothing could be read, 3 something is wrong and the cause unknown"  # noqa: E501
    parser.add_argument(
        "sources", nargs="+", metavar="FILE|FOLDER|-",
        help="logs of a job, folders of them, flight recorder dumps, stacks, kernel logs; - for stdin",
    )  # fmt: skip
    parser.add_argument(
        "--reports", action="append", type=Path, default=[], metavar="PATH",
        help="reports of gpudoctor check --json of the job's nodes: they raise or lower a hypothesis",
    )  # fmt: skip
    parser.add_argument("--format", choices=("text", "json", "html"), default="text", help="default: text")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")
    parser.add_argument("--follow", action="store_true", help="read on while the job runs; say when it stands still")
    parser.add_argument(
        "--stall", type=seconds, default=120.0, metavar="SECONDS", help="with --follow: no progress for so long (120)"
    )
    output_option(parser, "write the answer to FILE, atomically")
    redact_option(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="the timeline of all events")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def run_diagnose(args: argparse.Namespace) -> int:
    """Read, infer, answer; the exit code is that of the verdict."""
    sources, skipped = find_sources(args.sources)
    reports, unread = read_reports(args.reports)
    stall = None
    if args.follow:
        from gpudoctor.diagnose.follow import follow

        gathered, stall = follow(sources, args.stall, say)
    else:
        gathered = gather(sources)
    gathered.skipped[:0] = [*skipped, *unread]
    _refuse_nothing(gathered)
    answer = diagnose(gathered, reports)
    if stall is not None:
        say(f"nothing moved for {stall.seconds:g} s; last known: {'; '.join(stall.last[:16]) or 'no step was seen'}")
        answer = stalled(answer, stall)
    if args.redact:
        from gpudoctor.diagnose.redacted import redacted_diagnosis

        answer = redacted_diagnosis(answer)
    _write(args, answer)
    return _CODES[answer.verdict]


def _refuse_nothing(gathered: Gathered) -> None:
    """Where no file could be read at all, that is no "nothing found"."""
    read = [file for file in gathered.files if file.name not in {s.name for s in gathered.skipped}]
    if not read and gathered.skipped:
        first = gathered.skipped[0]
        more = f" (and {len(gathered.skipped) - 1} more)" if len(gathered.skipped) > 1 else ""
        raise UserError(f"{first.name}: {first.reason}{more}")
    if not gathered.files:
        raise UserError("no file in there")


def _write(args: argparse.Namespace, answer: Diagnosis) -> None:
    to_file = args.output is not None and str(args.output) != "-"
    if args.format == "json":
        shown = answer if args.verbose else msgspec.structs.replace(answer, timeline=())
        text = terminal_safe(msgspec.json.format(msgspec.json.encode(shown), indent=2)).decode() + "\n"
    elif args.format == "html":
        from gpudoctor.diagnose.html import render_html

        text = render_html(answer)
    else:
        painted = args.color == "always" or (
            args.color == "auto" and not to_file and is_terminal(sys.stdout) and not os.environ.get("NO_COLOR")
        )
        text = render_text(answer, width=_width(to_file), color=painted, verbose=args.verbose)
    if to_file:
        write_file(args.output, text)
    else:
        write_stdout(text)


def _width(to_file: bool) -> int:
    return min(max(shutil.get_terminal_size((110, 24)).columns, 60), 140) if not to_file else 110


__all__ = ["COULD_NOT", "add_diagnose_options", "run_diagnose"]
