"""`gpudoctor cluster report`: reads reports, says which nodes are bad and why."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from gpudoctor.cluster.fleet.files import as_text
from gpudoctor.cluster.fleet.judge import could_not, fleet_against, fleet_of
from gpudoctor.cluster.fleet.model import Fleet, bad_names, good_names
from gpudoctor.cluster.fleet.reading import Gathered, Reader, Refused, without_collector
from gpudoctor.cluster.fleet.records import Record
from gpudoctor.cluster.hostlist import hostlist
from gpudoctor.errors import UserError
from gpudoctor.exits import (
    COULD_NOT,
    ClosedStdoutError,
    InterruptedBySignal,
    hold_signals,
    printable,
    say,
    write_stdout,
)
from gpudoctor.json_text import json_line
from gpudoctor.report.output_files import OutputError, write_file

_SHOW_EVERY_S = 0.2


def cluster_report(args: argparse.Namespace) -> int:
    """Read, judge, write; give the exit code. Raise UserError where nothing could be read."""
    try:
        return _report(args)
    except ClosedStdoutError:
        raise
    except UserError as error:
        if args.format == "json" and not args.exclude_expr:
            _write(could_not(_texts(args.sources), printable(str(error)), COULD_NOT), args)
        raise


def _report(args: argparse.Namespace) -> int:
    if args.sources.count("-") + args.against.count("-") > 1:
        raise UserError("-: stdin can be read once only")
    stdin = sys.stdin.buffer if sys.stdin else None
    reader = Reader()
    with without_collector():
        gathered = _read(reader, args.sources, stdin)
        older = _read(reader, args.against, stdin) if args.against and gathered.interrupted is None else None
        signals = hold_signals()
        if older is None:
            fleet = fleet_of(_texts(args.sources), gathered, time.time())
        else:
            fleet = fleet_against(_texts(args.sources), gathered, _texts(args.against), older, time.time())
    signals += [read.interrupted for read in (gathered, older) if read is not None and read.interrupted is not None]
    if signals:
        fleet = msgspec.structs.replace(fleet, exit_code=InterruptedBySignal(signals[0]).exit_code)
        if args.good or args.bad or args.exclude_expr:
            # half of the bad nodes would look like all of them
            say("interrupted: no list of hosts is written")
    else:
        _write_lists(fleet, args)
    if args.exclude_expr:
        if not signals:
            _write_expression(fleet)
        return fleet.exit_code
    return _write(fleet, args)


def _texts(paths: list[str]) -> list[str]:
    return [as_text(path) for path in paths]


def _read(reader: Reader, sources: list[str], stdin: BinaryIO | None) -> Gathered:
    """All of the sources; what has come so far where a signal ends it. Raise UserError where there is no report."""
    shown = _progress()
    gathered: Gathered | None = None
    try:
        for gathered in reader.read(sources, stdin, _say_bad if "-" in sources else None):
            shown(gathered)
    except InterruptedBySignal as stop:
        if gathered is None or not gathered.records:
            raise
        gathered.interrupted = stop.number
    finally:
        shown(None)
    if gathered is None or not (gathered.records or gathered.broken):
        raise UserError(_nothing(sources, gathered))
    if not gathered.records:
        first = gathered.broken[0]
        raise UserError(f"no report could be read of {len(gathered.broken)}: {first.place}: {first.why}")
    return gathered


def _nothing(sources: list[str], gathered: Gathered | None) -> str:
    where = " ".join(sources)
    if gathered is None:
        return f"{where}: nothing was read"
    others = len(gathered.foreign) + gathered.found.others
    there = f"{others} other files and documents" if others else "nothing"
    return f"{where}: no report there, {there}; reports are written by gpudoctor check --json -o FILE"


def _say_bad(heard: Record | Refused) -> None:
    """While reports arrive on stdin, each bad one is said at once."""
    if isinstance(heard, Refused):
        say(f"{heard.place}: {heard.why}")
    elif heard.verdict in ("fail", "unknown"):
        say(f"{heard.name}: {heard.reason}")


def _progress() -> Callable[[Gathered | None], None]:
    """Says on one line of stderr how many were read, on a terminal only; None clears the line."""
    if sys.stderr is None or not sys.stderr.isatty():
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
    """Slurm's names of nodes are short ones; they stay whole where two would become one."""
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
    if args.output is not None and str(args.output) != "-":
        try:
            write_file(args.output, _render(fleet, args, to_file=True))
            return fleet.exit_code
        except OutputError as error:
            say(f"error: {error}; the report goes to stdout instead")
            fleet = msgspec.structs.replace(fleet, exit_code=COULD_NOT)
    write_stdout(_render(fleet, args, to_file=False))
    return fleet.exit_code


def _render(fleet: Fleet, args: argparse.Namespace, *, to_file: bool) -> str:
    if args.format == "json":
        return _json(fleet)
    # what draws for people costs a JSON report of many nodes more than half of its start
    if args.format == "html":
        from gpudoctor.cluster.fleet.html import render_fleet_html

        return render_fleet_html(fleet)
    from gpudoctor.cluster.fleet.text import render_fleet_text
    from gpudoctor.report.text import output_color, terminal_width

    color = output_color(args.color, to_file=to_file)
    return render_fleet_text(fleet, width=terminal_width(), color=color, verbose=args.verbose)


def _json(fleet: Fleet) -> str:
    return json_line(fleet)
