"""`gpudoctor baseline save` and `compare`: one node over time."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import uuid
from pathlib import Path

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpudoctor import __version__
from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.registry import Level
from gpudoctor.cli.check import read_source
from gpudoctor.cluster.baseline.compare import RUNS_TO_JUDGE, Baseline, Comparison, compare, with_run
from gpudoctor.cluster.fleet.files import Document, Listed, documents_of, stdin_documents
from gpudoctor.cluster.fleet.records import BrokenError, ForeignError, Record, Recorder
from gpudoctor.cluster.fleet.shapes import Verdict
from gpudoctor.cluster.hostlist import is_host_name
from gpudoctor.errors import UserError
from gpudoctor.exits import COULD_NOT, FAILED, OK, UNKNOWN, printable, write_stdout
from gpudoctor.json_text import json_line
from gpudoctor.plugins import all_checks
from gpudoctor.report.json import render_json
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Run, SourceSummary
from gpudoctor.report.output_files import write_file
from gpudoctor.report.text import laid_out, output_color, terminal_width
from gpudoctor.report.text_blocks import plain, status_word

_EXITS: dict[Verdict, int] = {"pass": OK, "warn": OK, "fail": FAILED, "unknown": UNKNOWN}


def baseline(args: argparse.Namespace) -> int:
    """Save or compare; give the exit code. Raise UserError for what cannot be read or does not belong together."""
    return _save(args) if args.baseline_command == "save" else _compare(args)


def _save(args: argparse.Namespace) -> int:
    record = _record(args)
    host = record.name if is_host_name(record.name) else "node"
    path = args.output or Path(f"gpudoctor-baseline-{host}.json")
    made = with_run(_load(path) if os.path.lexists(path) else None, record)
    write_file(path, json_line(made))
    more = RUNS_TO_JUDGE - len(made.runs)
    wanted = f"; {more} more until a loss of 10 % fails" if more > 0 else ""
    simulated = "SIMULATED " if made.simulated else ""
    figures = f"{len(record.entries)} figures" if record.entries else "no figures of GPUs (level quick, or CPU ranks)"
    write_stdout(
        f"{path}: {simulated}run {len(made.runs)} of {printable(made.host)}, {figures}, "
        f"{len(record.configuration)} items of configuration{wanted}\n"
    )
    return OK


def _compare(args: argparse.Namespace) -> int:
    try:
        comparison = _compared(args)
    except UserError as error:
        if args.format == "json":
            place = args.report or args.node or ""
            said = printable(str(error))
            _write(
                Comparison(
                    "gpudoctor.comparison/1", __version__, "", False, 0, place, "unknown", COULD_NOT, error=said
                ),
                args,
            )
        raise
    _write(comparison, args)
    return comparison.exit_code


def _compared(args: argparse.Namespace) -> Comparison:
    saved, record = _load(args.baseline), _record(args)
    changes, compared, missing, verdict = compare(saved, record)
    notes = []
    if missing:
        notes.append(f"{missing} saved figures were not measured now")
    if not compared and not missing and any(run.figures for run in saved.runs):
        notes.append("the saved figures are of other GPUs: none was compared; save runs of these in a new baseline")
    elif not compared and not missing:
        notes.append("no figures of GPUs in the baseline or the report: only the configuration was compared")
    elif len(saved.runs) < RUNS_TO_JUDGE:
        notes.append(f"{len(saved.runs)} saved runs: changes are only said until there are {RUNS_TO_JUDGE}")
    return Comparison(
        "gpudoctor.comparison/1",
        __version__,
        saved.host,
        saved.simulated,
        len(saved.runs),
        record.place,
        verdict,
        _EXITS[verdict],
        changes,
        compared,
        missing,
        tuple(notes),
    )


def _record(args: argparse.Namespace) -> Record:
    """The one report that is meant, from a file, stdin, or a check made now."""
    if (args.report is None) == (args.node is None):
        raise UserError(
            f"baseline {args.baseline_command} wants a REPORT of check --json, or --node SOURCE; one of them"
        )
    document = _checked(args) if args.report is None else _read(args.report)
    try:
        return Recorder().record(document)
    except (BrokenError, ForeignError) as error:
        raise UserError(f"{document.place}: {error}") from None


def _read(path: str) -> Document:
    if path == "-":
        found = list(stdin_documents(sys.stdin.buffer if sys.stdin else None))
    elif not Path(path).exists():
        raise UserError(f"{path}: no such file; reports are written by gpudoctor check --json -o FILE")
    else:
        found = list(documents_of(Listed(path, Path(path).name)))
    if len(found) != 1:
        raise UserError(f"{path}: {len(found)} reports in it, and one is wanted")
    return found[0]


def _checked(args: argparse.Namespace) -> Document:
    """A check at level quick, with the figures that a report as the source holds."""
    sourced = read_source(args.node, args.fault, 10.0)
    source = sourced.node.source
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    level: Level = "quick" if sourced.measurements is None else "full"
    summary = SourceSummary(source.kind, source.name, source.faults)
    run = Run(str(uuid.uuid4()), now, 0.0, level, summary, tuple(args.argv))
    question = Question(checks=all_checks(), level=level)
    report = judge(sourced.node, sourced.measurements, question, run=run)
    return Document(args.node, source.name or args.node, render_json(report).encode("utf-8", "backslashreplace"))


def _load(path: Path) -> Baseline:
    document = _read(str(path))
    if document.trouble is not None:
        raise UserError(f"{path}: {document.trouble}")
    try:
        made = msgspec.json.decode(document.data, type=Baseline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: no baseline of gpudoctor: {error}; gpudoctor baseline save writes one") from None
    if not made.runs:
        raise UserError(f"{path}: a baseline without runs")
    return made


def _write(comparison: Comparison, args: argparse.Namespace) -> None:
    to_file = args.output is not None and str(args.output) != "-"
    if args.format == "json":
        text = json_line(comparison)
    else:
        text = _text(comparison, output_color(args.color, to_file=to_file))
    if to_file:
        write_file(args.output, text)
    else:
        write_stdout(text)


def _text(comparison: Comparison, color: bool) -> str:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for change in comparison.changes:
        word = Text("said", style="dim") if change.status == "said" else status_word(Status(change.status))
        table.add_row(word, plain(change.text))
    parts: list[RenderableType] = []
    if comparison.simulated:
        parts.append(plain("SIMULATED: made up, no verdict on a real machine", "bold yellow"))
    what = f"{comparison.host} against {comparison.runs} saved runs: {comparison.compared} figures compared"
    parts += [plain(what, "bold"), table if comparison.changes else plain("nothing changed")]
    parts += [plain(f"Note: {note}") for note in comparison.notes]
    worse = sum(1 for change in comparison.changes if change.what == "figure" and change.status != "said")
    said = f"{worse} of {comparison.compared} figures worse than in the saved runs" if worse else ""
    parts.append(Text.assemble(status_word(Status(comparison.verdict)), "  ", said))
    return laid_out(parts, width=terminal_width(), color=color)
