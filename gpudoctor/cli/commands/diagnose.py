"""`gpudoctor diagnose`: what happened first in a failed or hanging job, where, and why."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from gpudoctor.cli import options
from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import COULD_NOT, FAILED, OK, UNKNOWN
from gpudoctor.text.json_text import json_document
from gpudoctor.text.output import printable, say

with lazy_imports():
    from gpudoctor.diagnose import build, diagnosis, example_jobs, follow, gather, html, node_reports, sources, text

_CODES = {"cause": FAILED, "unknown": UNKNOWN, "nothing": OK}
_FILE_WIDTH = 110
_WIDEST = 140


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit codes: 0 nothing wrong found, 1 a cause found, 2 nothing could be read or recognised, "
        "3 the cause is unknown, or nothing shows that the job moved, ended or was read"
    )
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="FILE|FOLDER|-",
        help="logs of a job, folders of them, flight recorder dumps, stacks, kernel logs; - for stdin",
    )
    parser.add_argument(
        "--example",
        choices=example_jobs.EXAMPLE_JOBS,
        metavar="NAME",
        help=f"the log of a small real job that comes with gpudoctor: {', '.join(example_jobs.EXAMPLE_JOBS)}",
    )
    parser.add_argument(
        "--reports",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="reports of gpudoctor check --json of the job's nodes: they raise or lower a hypothesis",
    )
    options.add_formats(parser, "text", "json", "html")
    parser.add_argument("--follow", action="store_true", help="keep reading while the job runs; report if it stalls")
    parser.add_argument(
        "--stall",
        type=options.seconds,
        default=120.0,
        metavar="SECONDS",
        help="with --follow: no progress for so long (120)",
    )
    options.add_output(parser, "write the answer to FILE, atomically")
    options.add_redact(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="the timeline of all events")
    options.add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Read the logs, infer the cause, write the answer; return the exit code. Raise UserError if no log is readable."""
    found, not_entered = _sources(args)
    reports, no_reports = node_reports.read_reports(args.reports)
    stall = None
    if args.follow:
        gathered, stall = follow.follow(found, args.stall, say)
    else:
        gathered = gather.gather(found)
    gathered.unread[:0] = [*not_entered, *no_reports]
    _refuse_nothing(gathered, args.sources)
    answer = build.diagnose(gathered, reports)
    if stall is not None:
        say(f"nothing moved for {stall.seconds:g} s; last known: {'; '.join(stall.last[:16]) or 'no step was seen'}")
        answer = build.stalled(answer, stall)
    if args.redact:
        answer = diagnosis.redacted_diagnosis(answer)
    options.write_output(_rendered(args, answer), args)
    return COULD_NOT if not answer.recognised else _CODES[answer.verdict]


def _sources(args: argparse.Namespace) -> tuple[list[sources.LogSource], list[diagnosis.Unread]]:
    """The files that were named, or the example. Raise UserError if there is neither or both."""
    if args.example is None:
        if not args.sources:
            raise UserError("name the logs of a job, - for stdin, or --example hang to try it")
        return sources.find_sources(args.sources)
    if args.sources:
        raise UserError("--example goes without files")
    path, about = example_jobs.log_of(args.example), example_jobs.EXAMPLE_JOBS[args.example]
    say(f"example job {args.example}: {about} (a real run of 3 CPU ranks). Its log: {path}")
    return [sources.LogSource(path.name, path, path.stat().st_size)], []


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """Write the error as a document if JSON or HTML was requested; return the exit code."""
    if args.format in ("json", "html"):
        answer = diagnosis.Diagnosis(verdict="unknown", cause=None, reason=printable(message))
        if args.redact:
            answer = diagnosis.redacted_diagnosis(answer)
        options.write_error_document(_rendered(args, msgspec.structs.replace(answer, error=answer.reason)), args)
    return code


def _refuse_nothing(gathered: gather.GatheredLogs, sources: list[str]) -> None:
    """Raise UserError if no file could be read: that must not look like "nothing wrong found"."""
    unread = {each.file for each in gathered.unread}
    if unread and all(file.name in unread and not file.lines for file in gathered.files):
        first = gathered.unread[0]
        more = f" (and {len(gathered.unread) - 1} more)" if len(gathered.unread) > 1 else ""
        raise UserError(f"{first.file}: {first.reason}{more}")
    if not gathered.files:
        raise UserError(f"{' '.join(sources)}: no file in there")


def _rendered(args: argparse.Namespace, answer: diagnosis.Diagnosis) -> str:
    if args.format == "json":
        shown = answer if args.verbose else msgspec.structs.replace(answer, timeline=())
        return json_document(shown)
    if args.format == "html":
        return html.render_html(answer)
    color = options.output_color(args.color, to_file=options.to_file(args))
    width = _FILE_WIDTH if options.to_file(args) else min(options.terminal_width(_FILE_WIDTH), _WIDEST)
    return text.render_text(answer, width=width, color=color, verbose=args.verbose)
