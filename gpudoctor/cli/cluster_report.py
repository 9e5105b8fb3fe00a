"""`gpudoctor cluster report`: reads reports, says which nodes are bad and why."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpudoctor.cli.options import color_option, format_options, output_option, to_file
from gpudoctor.errors import UserError
from gpudoctor.exits import COULD_NOT, ClosedStdoutError, is_terminal, printable, say, write_stdout

if TYPE_CHECKING:
    from gpudoctor.cluster.fleet.model import Fleet
    from gpudoctor.cluster.fleet.reading import Gathered, Refused
    from gpudoctor.cluster.fleet.records import ReportRecord

_SHOW_EVERY_S = 0.2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gpudoctor cluster report`."""
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
    format_options(parser, "text", "json", "html")
    output_option(parser, "write to FILE, atomically")
    parser.add_argument(
        "--good", type=Path, metavar="FILE", help="write the hosts that pass or warn to FILE, one a line"
    )
    parser.add_argument(
        "--bad", type=Path, metavar="FILE", help="write the hosts that fail; one that is unknown stands in neither"
    )
    parser.add_argument(
        "--exclude-expr",
        action="store_true",
        help="print the failing nodes only, as a Slurm hostlist expression: sbatch --exclude=$(...)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="every node and every figure")
    color_option(parser)
    parser.epilog = (
        "exit codes: 0 all nodes fit, 1 a node fails, 2 nothing to read, 3 none fails but some are not known (a report "
        "that cannot be read counts as such a node)"
    )


def run(args: argparse.Namespace) -> int:
    """Read, judge, write; give the exit code. Raise UserError if nothing could be read."""
    from gpudoctor.cluster.fleet.judge import could_not
    from gpudoctor.cluster.fleet.read_fleet import texts_of

    try:
        return _report(args)
    except ClosedStdoutError:
        raise
    except UserError as error:
        if args.format == "json" and not args.exclude_expr:
            _write(could_not(texts_of(args.sources), printable(str(error)), COULD_NOT), args)
        raise


def _report(args: argparse.Namespace) -> int:
    from gpudoctor.cluster.fleet.read_fleet import ClusterReportRequest, FleetProgress, read_fleet

    request = ClusterReportRequest(tuple(args.sources), tuple(args.against))
    fleet, signals = read_fleet(request, FleetProgress(_progress(), _say_bad))
    if not signals:
        _write_lists(fleet, args)
    elif args.good or args.bad or args.exclude_expr:
        # half of the bad nodes would look like all of them
        say("interrupted: no list of hosts is written")
    if not args.exclude_expr:
        return _write(fleet, args)
    if not signals:
        _write_expression(fleet)
    return fleet.exit_code


def _say_bad(heard: ReportRecord | Refused) -> None:
    """While reports arrive on stdin, each bad one is said at once."""
    from gpudoctor.cluster.fleet.reading import Refused

    if isinstance(heard, Refused):
        say(f"{heard.place}: {heard.why}")
    elif heard.verdict in ("fail", "unknown"):
        say(f"{heard.name}: {heard.reason}")


def _progress() -> Callable[[Gathered | None], None]:
    """Says on one line of stderr how many were read, on a terminal only; None clears the line."""
    if not is_terminal(sys.stderr):
        return lambda gathered: None
    last = time.monotonic()

    def show(gathered: Gathered | None) -> None:
        nonlocal last
        if gathered is None:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
        elif time.monotonic() - last > _SHOW_EVERY_S:
            last = time.monotonic()
            sys.stderr.write(f"\r\x1b[2K{len(gathered.records)} reports")
            sys.stderr.flush()

    return show


def _write_lists(fleet: Fleet, args: argparse.Namespace) -> None:
    from gpudoctor.cluster.fleet.model import bad_names, good_names
    from gpudoctor.report.output_files import write_file

    good, bad = good_names(fleet), bad_names(fleet)
    for path, names in ((args.good, good), (args.bad, bad)):
        if path is not None:
            write_file(path, "".join(f"{name}\n" for name in names))
    neither = len(dict.fromkeys(row.host for row in fleet.nodes)) - len(good) - len(bad)
    unread = fleet.counts.unread
    if (args.good or args.bad or args.exclude_expr) and (neither or unread):
        and_unread = f", and {unread} reports that could not be read" if unread else ""
        say(f"in neither list: {neither} nodes that are unknown or have no host's name{and_unread}")


def _write_expression(fleet: Fleet) -> None:
    """Slurm's names of nodes are short ones; they stay whole if two would become one."""
    from gpudoctor.cluster.fleet.model import bad_names
    from gpudoctor.cluster.hostlist import hostlist

    every = Counter(_short(name) for name in {row.host for row in fleet.nodes})
    names = [short if every[short := _short(name)] == 1 else name for name in bad_names(fleet)]
    write_stdout(hostlist(names) + "\n")


def _short(name: str) -> str:
    """
    >>> _short("gpu-07.cluster.example"), _short("10.0.0.7")
    ('gpu-07', '10.0.0.7')
    """
    first = name.partition(".")[0]
    return name if first.isdecimal() else first


def _write(fleet: Fleet, args: argparse.Namespace) -> int:
    import msgspec

    from gpudoctor.report.output_files import OutputError, write_file

    if to_file(args):
        try:
            write_file(args.output, _rendered(fleet, args, to_file=True))
            return fleet.exit_code
        except OutputError as error:
            say(f"error: {error}; the report goes to stdout instead")
            fleet = msgspec.structs.replace(fleet, exit_code=COULD_NOT)
    write_stdout(_rendered(fleet, args, to_file=False))
    return fleet.exit_code


def _rendered(fleet: Fleet, args: argparse.Namespace, *, to_file: bool) -> str:
    """The fleet in its format; what draws for people costs a JSON report of many nodes more than half of its start."""
    if args.format == "json":
        from gpudoctor.json_text import json_line

        return json_line(fleet)
    if args.format == "html":
        from gpudoctor.cluster.fleet.html import render_fleet_html

        return render_fleet_html(fleet)
    from gpudoctor.cluster.fleet.text import render_fleet_text
    from gpudoctor.report.text import output_color, terminal_width

    color = output_color(args.color, to_file=to_file)
    return render_fleet_text(fleet, width=terminal_width(), color=color, verbose=args.verbose)
