"""The report of one `gpudoctor check`, or that nothing could be judged, written in the format asked for."""

from __future__ import annotations

import argparse
import os
import sys
import time

import msgspec

from gpudoctor.api import nothing_read, rfc3339, run_id
from gpudoctor.exits import COULD_NOT, ClosedStdoutError, is_terminal, printable, say, write_stdout
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.report.model import (
    Counts,
    HostSummary,
    ProfileSummary,
    Report,
    Run,
    SourceSummary,
    Tool,
)
from gpudoctor.report.output_files import OutputError, write_file


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """What could not be done, in the format asked for: one document on every exit, 2 included.

    As text it stands on stderr already; a file asked for gets it too, so that no old report
    lies there as if it were this run's.
    """
    if _format(args) == "text":
        if _to_file(args):
            write_file(args.output, f"gpudoctor could not judge this node: {printable(message)}\n")
        return code
    source = nothing_read(args.node).source
    report = Report(
        schema="gpudoctor.report/1",
        tool=Tool(),
        run=Run(
            id=run_id(),
            started_at=rfc3339(time.time()),
            duration_s=0.0,
            level=args.level or "standard",
            source=SourceSummary(source.kind, source.name),
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
        from gpudoctor.facts.redaction.redact import Redaction

        report = Redaction(nothing_read(args.node)).of(report)
    return write_report(report, args)


def write_report(report: Report, args: argparse.Namespace) -> int:
    """Write the report where and as it was asked for; give the exit code."""
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
