"""Reads the runs that `gpudoctor baseline` saves and compares: from a report, stdin, or a check made now."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import msgspec

from gpudoctor.api.node_check import read_source
from gpudoctor.checks.core.registry import Level, all_checks
from gpudoctor.cluster.baseline.compare import RUNS_TO_JUDGE, Baseline, Comparison, compare, with_run
from gpudoctor.cluster.fleet.files import Document, Listed, documents_of, stdin_documents
from gpudoctor.cluster.fleet.records import BrokenError, ForeignError, Recorder, ReportRecord
from gpudoctor.errors import UserError
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Run, SourceSummary, render_json
from gpudoctor.report.output_files import write_file
from gpudoctor.report.progress import terminal_progress
from gpudoctor.text.hostlist import is_host_name
from gpudoctor.text.json_text import json_line
from gpudoctor.text.output import printable
from gpudoctor.text.standard_input import standard_input
from gpudoctor.text.units import rfc3339


class BaselineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a node: either a `report` (`-` is stdin) or a source `node` to check now. `action` is save or compare.

    Raise UserError unless exactly one of `report` and `node` is given.
    """

    action: str
    report: str | None = None
    node: str | None = None
    faults: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.report is None) == (self.node is None):
            found = "neither is" if self.report is None else "both are"
            raise UserError(
                f"baseline {self.action} takes a REPORT of check --json or --node SOURCE, one of them; {found} given"
            )


def save_run(request: BaselineRequest, output: Path | None) -> str:
    """Add a run to the baseline in `output` (None: named after the host); return a line for people. Raise UserError."""
    record = _record(request)
    host = record.name if is_host_name(record.name) else "node"
    path = output or Path(f"gpudoctor-baseline-{host}.json")
    made = with_run(_load(path) if os.path.lexists(path) else None, record)
    write_file(path, json_line(made))
    more = RUNS_TO_JUDGE - len(made.runs)
    expected = f"; {more} more until a loss of 10 % fails" if more > 0 else ""
    simulated = "SIMULATED " if made.simulated else ""
    figures = f"{len(record.entries)} figures" if record.entries else "no figures of GPUs (level quick, or CPU ranks)"
    return (
        f"{path}: {simulated}run {len(made.runs)} of {printable(made.host)}, {figures}, "
        f"{len(record.configuration)} items of configuration{expected}\n"
    )


def compare_run(request: BaselineRequest, baseline: Path) -> Comparison:
    """Compare a run with the saved ones. Raise UserError if either cannot be read or they are of different nodes."""
    return compare(_load(baseline), _record(request))


def _record(request: BaselineRequest) -> ReportRecord:
    document = _checked(request) if request.report is None else _read(request.report)
    try:
        return Recorder().record(document)
    except (BrokenError, ForeignError) as error:
        raise UserError(f"{document.place}: {error}") from None


def _read(path: str) -> Document:
    if path == "-":
        found = list(stdin_documents(standard_input("paste a report")))
    else:
        try:
            Path(path).stat()
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; reports are written by gpudoctor check --json -o FILE") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
        found = list(documents_of(Listed(path, Path(path).name)))
    if len(found) != 1:
        raise UserError(f"{path}: it must hold one report, and there are {len(found)} in it")
    return found[0]


def _checked(request: BaselineRequest) -> Document:
    """A check made now at level quick; at level full if the source is a report that has measurements."""
    node = request.node or ""
    sourced = read_source(node, request.faults, 10.0, progress=terminal_progress())
    source = sourced.node.source
    level: Level = "quick" if sourced.measurements is None else "full"
    summary = SourceSummary(source.kind, source.name, source.faults)
    run = Run(str(uuid.uuid4()), rfc3339(time.time()), 0.0, level, summary, request.argv)
    question = Question(checks=all_checks(), level=level)
    report = judge(sourced.node, sourced.measurements, question, run=run)
    return Document(node, source.name or node, render_json(report).encode("utf-8", "backslashreplace"))


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
