"""`gpudoctor cluster report`: reads many reports and lists which nodes are bad and why."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from gpudoctor.cli import options
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import COULD_NOT, FAILED, OK, UNKNOWN
from gpudoctor.text.json_text import json_line
from gpudoctor.text.output import is_terminal, printable, rewrite_line, say, write_stdout

with lazy_imports():
    # importing the text and HTML renderers takes more than half of the start-up of a JSON report
    from gpudoctor.cluster.fleet import html, judge, model, read_fleet, reading, records, text
    from gpudoctor.report import output_files
    from gpudoctor.text import hostlist, units

_SHOW_EVERY_S = 0.2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="DIR|FILE|-",
        help="reports of check --json: folders with all below (*.json, *.jsonl, *.ndjson, .gz too), files of one "
        "report or of one a line, - for stdin while lines arrive",
    )
    parser.add_argument(
        "--against", action="append", default=[], metavar="OLDER", help="an older set: say what changed since"
    )
    options.add_formats(parser, "text", "json", "html")
    options.add_output(parser, "write to FILE, atomically")
    parser.add_argument(
        "--good", type=Path, metavar="FILE", help="write the hosts that pass or warn to FILE, one a line"
    )
    parser.add_argument(
        "--bad", type=Path, metavar="FILE", help="write the hosts that fail; unknown ones are in neither file"
    )
    parser.add_argument(
        "--expect",
        metavar="HOSTLIST",
        help="the hosts that should have a report, as n[1-4,7]: one without is unknown. Default: the nodes of the "
        "Slurm job that this runs in; none if empty",
    )
    parser.add_argument(
        "--exclude-expr",
        action="store_true",
        help="print the nodes that fail or are unknown only, as a Slurm hostlist expression: sbatch --exclude=$(...)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="every node and every figure")
    options.add_color(parser)
    parser.epilog = (
        "exit codes: 0 all nodes fit, 1 a node fails, 2 nothing to read, 3 none fails but some are not known (a report "
        "that cannot be read counts as such a node). With --exclude-expr: 0 the list is complete, 1 it is, and no "
        "fit node is left, 3 nodes may be missing in it"
    )


def run(args: argparse.Namespace) -> int:
    """Read, judge and write; return the exit code. Raise UserError if nothing could be read."""
    expression = os.environ.get("SLURM_JOB_NODELIST", "") if args.expect is None else args.expect
    expected = hostlist.expand_hostlist(expression) if expression else ()
    request = read_fleet.ClusterReportRequest(tuple(args.sources), tuple(args.against), expected)
    fleet, signals = read_fleet.read_fleet(request, _progress(), _say_bad)
    if not signals:
        _write_lists(fleet, args)
    elif args.good or args.bad or args.exclude_expr:
        # an incomplete list of bad nodes would look complete
        say("interrupted: no list of hosts is written")
    if not args.exclude_expr:
        return _write(fleet, args)
    if signals:
        return fleet.exit_code
    return _write_expression(fleet, expected)


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """Write the error as a JSON document if JSON was requested; return the exit code."""
    if args.format == "json" and not args.exclude_expr:
        _write(judge.could_not(read_fleet.texts_of(args.sources), printable(message), code), args)
    return code


def _say_bad(reporting: records.ReportRecord | reading.Refused) -> None:
    """Print each bad report at once while reports arrive on stdin."""
    if isinstance(reporting, reading.Refused):
        say(f"{reporting.place}: {reporting.why}")
    elif reporting.verdict in ("fail", "unknown"):
        say(f"{reporting.name}: {reporting.reason}")


def _progress() -> Callable[[reading.Gathered | None], None]:
    """A function that shows on a terminal how many reports were read; called with None, it clears the line."""
    if not is_terminal(sys.stderr):
        return lambda gathered: None
    last = time.monotonic()

    def show(gathered: reading.Gathered | None) -> None:
        nonlocal last
        if gathered is None:
            rewrite_line("")
        elif time.monotonic() - last > _SHOW_EVERY_S:
            last = time.monotonic()
            rewrite_line(f"{len(gathered.records)} reports")

    return show


def _write_lists(fleet: model.Fleet, args: argparse.Namespace) -> None:
    good, bad = model.good_names(fleet), model.bad_names(fleet)
    for path, names in ((args.good, good), (args.bad, bad)):
        if path is not None:
            output_files.write_file(path, "".join(f"{name}\n" for name in names))
    neither = len(dict.fromkeys(row.host for row in fleet.nodes)) - len(good) - len(bad)
    unread = fleet.counts.unread
    if (args.good or args.bad) and (neither or unread):
        parts = [f"{units.counted(neither, 'node')} (unknown, or without a host's name)"] if neither else []
        parts += [f"{units.counted(unread, 'report')} that could not be read"] if unread else []
        say(f"in neither list: {' and '.join(parts)}")


def _write_expression(fleet: model.Fleet, expected: Sequence[str]) -> int:
    """Print a hostlist of short names, as Slurm uses them; names that would collide keep their domain."""
    every = Counter(hostlist.short_name(name) for name in {row.host for row in fleet.nodes})
    excluded = model.excluded_names(fleet, expected)
    names = [short if every[short := hostlist.short_name(name)] <= 1 else name for name in excluded]
    write_stdout(hostlist.hostlist(names) + "\n")
    if not expected and (unlisted := model.unlisted_count(fleet)):
        have = "node has" if unlisted == 1 else "nodes have"
        say(f"{unlisted} {have} no name that a list may hold; with --expect HOSTLIST a missing node is in it")
        return UNKNOWN
    if not model.good_names(fleet):
        say("no fit node is left")
        return FAILED
    return OK


def _write(fleet: model.Fleet, args: argparse.Namespace) -> int:
    def rendered(fleet: model.Fleet, to_file: bool) -> str:
        if args.format == "json":
            return json_line(fleet)
        if args.format == "html":
            return html.render_fleet_html(fleet)
        color = options.output_color(args.color, to_file=to_file)
        return text.render_fleet_text(
            fleet, width=options.terminal_width(), color=color, verbose=args.verbose, expect=args.expect or ""
        )

    return fleet.exit_code if options.write_as_asked(fleet, args, rendered) else COULD_NOT
