"""The report of one `gpudoctor check`: judged, or that it could not be, and written in the format asked for."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
import uuid

import msgspec

from gpudoctor.exits import COULD_NOT, ClosedStdoutError, InterruptedBySignal, is_terminal, printable, say, write_stdout
from gpudoctor.facts.measurements import Measurements
from gpudoctor.facts.node import Node, Source
from gpudoctor.report.files import OutputError, write_file
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.report import (
    Counts,
    HostSummary,
    ProfileSummary,
    Report,
    Run,
    SourceSummary,
    Tool,
)


def write_report(
    node: Node,
    measurements: Measurements | None,
    question: Question,
    args: argparse.Namespace,
    started_s: float,
    duration_s: float,
    signals: list[int],
) -> int:
    """Judge the node and write the report; give the exit code.

    `started_s`: when the run began, in seconds since 1970; `signals`: those that have cut it short.
    """
    run = Run(
        id=_run_id(),
        started_at=_rfc3339(started_s),
        duration_s=round(duration_s, 3),
        level=question.level,
        source=SourceSummary(node.source.kind, node.source.name, node.source.faults),
        argv=tuple(args.argv),
    )
    with_facts = args.include_facts or _format(args) == "html"  # its tables of GPUs and of the topology are facts
    report = judge(node, measurements, question, run=run, include_facts=with_facts)
    if signals:
        signal = InterruptedBySignal(signals[0])
        run = msgspec.structs.replace(report.run, interrupted=str(signal))
        report = msgspec.structs.replace(report, run=run, exit_code=signal.exit_code)
    if args.redact:
        from gpudoctor.facts.redact import Redaction

        report = Redaction(node).of(report)
    return _write(report, args)


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """What could not be done, in the format asked for: one document on every exit, 2 included.

    As text it stands on stderr already; a file asked for gets it too, so that no old report
    lies there as if it were this run's.
    """
    if _format(args) == "text":
        if _to_file(args):
            write_file(args.output, f"gpudoctor could not judge this node: {printable(message)}\n")
        return code
    report = Report(
        schema="gpudoctor.report/1",
        tool=Tool(),
        run=Run(
            id=_run_id(),
            started_at=_rfc3339(time.time()),
            duration_s=0.0,
            level=args.level or "standard",
            source=_named_source(args.node),
            argv=tuple(args.argv),
        ),
        host=HostSummary(None, None, None),
        gpus=(),
        profile=ProfileSummary("none", "nothing was judged"),
        verdict="unknown",
        exit_code=code,
        reason="UNKNOWN gpudoctor could not do its work",
        counts=Counts(),
        checks=(),
        faults=(),
        measurements=Measurements(),
        error=printable(message),
    )
    if args.redact:
        from gpudoctor.facts.redact import Redaction

        report = Redaction(nothing_read(args.node)).of(report)
    return _write(report, args)


def _write(report: Report, args: argparse.Namespace) -> int:
    code = report.exit_code
    if _format(args) == "nagios" and report.run.interrupted is None:
        from gpudoctor.report.nagios import nagios_code

        code = nagios_code(report)
    if _to_file(args):
        try:
            write_file(args.output, _render(report, args, to_file=True))
            return code
        except OutputError as error:
            if report.error is None:
                say(f"error: {error}; the report goes to stdout instead")
            report, code = msgspec.structs.replace(report, exit_code=COULD_NOT), COULD_NOT
    try:
        write_stdout(_render(report, args, to_file=False))
    except ClosedStdoutError as error:
        if report.error is None:
            say(f"error: {error}")
        return COULD_NOT
    return code


def _render(report: Report, args: argparse.Namespace, *, to_file: bool) -> str:
    wanted = _format(args)
    if wanted == "json":
        from gpudoctor.report.json import render_json

        return render_json(report)
    if wanted == "nagios":
        from gpudoctor.report.nagios import render_nagios

        return render_nagios(report)
    if wanted == "prometheus":
        from gpudoctor.report.prometheus import render_prometheus

        return render_prometheus(report)
    if wanted == "junit":
        from gpudoctor.report.junit import render_junit

        return render_junit(report)
    if wanted == "html":
        from gpudoctor.report.html import render_html

        return render_html(report, raw_facts=args.include_facts)
    from gpudoctor.report.text import render_text, terminal_width, wants_color

    # FORCE_COLOR is about what a person watches: a file gets colour on --color always only
    color = wants_color(args.color, {} if to_file else os.environ, is_terminal=not to_file and is_terminal(sys.stdout))
    return render_text(report, width=terminal_width(), color=color, verbose=args.verbose)


def _to_file(args: argparse.Namespace) -> bool:
    return args.output is not None and str(args.output) != "-"


def _format(args: argparse.Namespace) -> str:
    return args.format or "text"


def _named_source(name: str | None) -> SourceSummary:
    return SourceSummary("live" if name is None else "facts", printable(name or ""))


def nothing_read(name: str | None) -> Node:
    """What is known when a signal came before any fact."""
    source = _named_source(name)
    return Node(source=Source(kind=source.kind, name=source.name))


def _rfc3339(time_s: float) -> str:
    return datetime.datetime.fromtimestamp(time_s, datetime.timezone.utc).isoformat(timespec="seconds")


def _run_id() -> str:
    return str(uuid.uuid4())
