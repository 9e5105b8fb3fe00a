"""`gpudoctor check`: turns options into a request, handles signals, and writes the report in the requested format."""

from __future__ import annotations

import argparse
import os
import time
import uuid
from typing import get_args

from gpudoctor.cli import options
from gpudoctor.facts.system.sysfs import ROOT
from gpudoctor.lazy import lazy_imports
from gpudoctor.probes.runner.launch_engine import MAX_RANKS, LocalPlacement, local_placement
from gpudoctor.process.exit_codes import COULD_NOT, OK, FailOn
from gpudoctor.process.signals import InterruptedBySignal, hold_signals
from gpudoctor.text.output import printable, say

with lazy_imports():
    # the checks are imported while the driver is being read, which takes as long; formats only when requested
    from gpudoctor.api import node_check
    from gpudoctor.facts.nvml import collector_ahead, fake_driver_context
    from gpudoctor.facts.redaction import redact
    from gpudoctor.facts.system import services
    from gpudoctor.probes.runner import local_workers
    from gpudoctor.report import html, junit_nagios, model, output_files, progress, prometheus, text
    from gpudoctor.text import units

_EXAMPLES = """examples:
  gpudoctor check                            this machine, half a minute
  gpudoctor check pcie nvlink --level quick  two domains, without load
  gpudoctor check --node bug-report.log.gz   what somebody sent
  nvidia-smi -q | gpudoctor check --node -   what a command prints
  gpudoctor check --json -o report.json      for a script

exit codes: 0 no failure, 1 a failure, 2 gpudoctor could not do its work,
            3 something is unknown
"""
FORMATS = ("text", "json", "nagios", "prometheus", "junit", "html")


def add_options(check: argparse.ArgumentParser) -> None:
    check.usage = "gpudoctor check [ID|DOMAIN ...] [--node SOURCE] [--level LEVEL] [OPTION ...]"
    check.epilog = _EXAMPLES
    check.add_argument("only", nargs="*", metavar="ID|DOMAIN", help="only these checks (globs too); all without")
    _add_what(check.add_argument_group("what"))
    _add_how_deep(check.add_argument_group("how deep"))
    _add_output(check.add_argument_group("output"))
    _add_policy(check.add_argument_group("policy"))
    _add_trials(check.add_argument_group("try it"))
    check.formatter_class = argparse.RawDescriptionHelpFormatter  # last: argparse makes one an option


def _add_what(what: argparse._ArgumentGroup) -> None:
    options.add_node(what, options.NODE_HELP + "; without it, this machine")
    what.add_argument("--gpu", metavar="LIST", help="judge only these GPUs: indices, UUIDs, bus ids, with commas")
    what.add_argument("--skip", action="append", default=[], metavar="ID|DOMAIN", help="leave these out")
    what.add_argument(
        "--data", action="append", default=[], metavar="PATH", help="a folder or file that training reads"
    )
    what.add_argument("--need", metavar="RATE", help="what each GPU must be fed: 400MB/s, 1.5GB/s")


def _add_how_deep(depth: argparse._ArgumentGroup) -> None:
    depth.add_argument(
        "--level",
        choices=options.LEVELS,
        help="quick reads only; standard (default) adds collectives and a DDP train; full adds links, compute and "
        "memory; burn repeats full",
    )
    depth.add_argument("--duration", metavar="TIME", help="of level burn: 90s, 10m (default), 1h, or seconds")
    depth.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="gloo: CPU ranks")
    depth.add_argument(
        "--ranks", type=options.up_to(MAX_RANKS), metavar="N", help="number of ranks (default: one a GPU; gloo: 2)"
    )
    depth.add_argument("--force", action="store_true", help="load GPUs that another process uses")
    options.add_facts_deadline(depth, "for reading the facts (default 60)")


def _add_output(output: argparse._ArgumentGroup) -> None:
    options.add_formats(output, *FORMATS)
    options.add_output(output, "write the report to FILE, atomically")
    output.add_argument("-v", "--verbose", action="store_true", help="every finding")
    output.add_argument(
        "--include-facts", action="store_true", help="put the facts as JSON into JSON (it can be judged again) and HTML"
    )
    options.add_redact(output)
    output.add_argument(
        "--progress",
        action="store_true",
        help="write progress to stderr as JSON lines (progress, rank, probe, step, steps, round, elapsed_s, left_s), "
        "until stderr is closed",
    )
    options.add_color(output)


def _add_policy(policy: argparse._ArgumentGroup) -> None:
    policy.add_argument("--fail-on", choices=get_args(FailOn), help="what exits with 1 (default: fail)")
    policy.add_argument(
        "--require", action="append", default=[], metavar="ID", help="exit 3 if this check gave no verdict"
    )
    policy.add_argument("--profile", metavar="NAME|FILE", help="judge against this profile (default: matched)")
    policy.add_argument(
        "--config", type=options.file_path, metavar="FILE", help="thresholds, suppressions, expectations"
    )
    policy.add_argument("--strict", action="store_true", help="refuse keys that this version does not know in it")


def _add_trials(trials: argparse._ArgumentGroup) -> None:
    options.add_fault(trials)
    trials.add_argument(
        "--inject",
        action="append",
        default=[],
        metavar="CASE",
        help="make a rank go wrong, to try alarms: see gpudoctor nodes rank",
    )


def run(args: argparse.Namespace) -> int:
    """Check, write the report and return the exit code. Raise UserError if the check cannot be done."""
    placement = local_placement(os.environ)
    _have_driver_read(args, placement)
    # the tables of GPUs and of the topology on the page come from the facts
    include_facts = args.include_facts or args.format == "html"
    prep = node_check.prepare(options.request_from(args, node_check.CheckRequest, include_facts=include_facts))
    writer = progress.progress_to_stderr if args.progress else progress.terminal_progress
    say_progress = writer(prep.burn_s)
    if placement is not None and placement.rank:
        collector_ahead.dismiss_ahead()
        return _run_local_worker(placement) if prep.wants_ranks else OK
    if args.node is None and not args.faults:
        collector_ahead.order_ahead(fake_driver_context.root_of(os.environ))
    import gpudoctor.report.output_files  # noqa: F401

    report = node_check.run_prepared(
        prep,
        argv=args.argv,
        placement=placement,
        progress=say_progress,
        hold_signals=hold_signals,
        words=True,
    )
    return _write_report(report, args)


def _have_driver_read(args: argparse.Namespace, placement: LocalPlacement | None) -> None:
    """Let the waiting collector start reading the driver before the checks are imported, which takes as long.

    Not if an option was given that can be validated only later: if it is wrong, the driver must not be touched.
    """
    later = (
        args.node,
        args.faults,
        args.only,
        args.skip,
        args.require,
        args.config,
        args.duration,
        args.data,
        args.need,
    )
    if not any(later) and args.node is None and (placement is None or not placement.rank):
        collector_ahead.order_ahead(fake_driver_context.root_of(os.environ))


def _run_local_worker(placement: LocalPlacement) -> int:
    """Run as one of the further processes of an engine: host ranks, while the first process checks and reports."""
    try:
        why_not = local_workers.run_local_worker(placement)
    except InterruptedBySignal as stop:
        return stop.exit_code
    if why_not is None:
        return OK
    say(f"error: {why_not}")
    return COULD_NOT


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """Write the error as a document in the requested format, and return the exit code.

    As text it is on stderr already; a file named by `-o` gets it too, so that an old report there is not taken for that
    of this run.
    """
    if _is_text(args):
        if options.to_file(args):
            output_files.write_file(args.output, f"gpudoctor could not judge this node: {printable(message)}\n")
        return code
    nothing = node_check.nothing_read(args.node)
    source = model.SourceSummary(nothing.source.kind, nothing.source.name)
    started_at = units.rfc3339(time.time())
    begun = model.Run(str(uuid.uuid4()), started_at, 0.0, args.level or "standard", source, tuple(args.argv))
    report = model.error_report(begun, message, code)
    if args.redact:
        report = redact.Redaction(nothing).of(report)
    return _write_report(report, args)


def _is_text(args: argparse.Namespace) -> bool:
    return args.format in (None, "text")


def _write_report(report: model.Report, args: argparse.Namespace) -> int:
    """Write the report where and in the format requested; return the exit code."""
    code = report.exit_code
    if report.run.interrupted and args.node is not None and not report.evaluated.checks and _is_text(args):
        say(f"interrupted by {report.run.interrupted}")  # while the text was read: a report of it would say nothing
        return write_error(args, f"interrupted by {report.run.interrupted}", code)
    if args.format == "nagios" and report.run.interrupted is None:
        code = junit_nagios.nagios_code(report)
    if not options.write_as_asked(report, args, lambda report, to_file: _rendered(report, args, to_file=to_file)):
        return COULD_NOT
    if args.format == "prometheus" and options.to_file(args) and args.output.is_file():
        # with metrics in a folder that node_exporter does not read, the node would silently be missing
        why_not = prometheus.why_not_read(args.output, services.read_node_exporters(ROOT))
        if why_not is not None:
            say(why_not)
    return code


def _rendered(report: model.Report, args: argparse.Namespace, *, to_file: bool) -> str:
    if args.format == "json":
        return model.render_json(report)
    if args.format == "nagios":
        return junit_nagios.render_nagios(report)
    if args.format == "prometheus":
        return prometheus.render_prometheus(report)
    if args.format == "junit":
        return junit_nagios.render_junit(report)
    if args.format == "html":
        return html.render_html(report, raw_facts=args.include_facts)
    color = options.output_color(args.color, to_file=to_file)
    return text.render_text(report, width=options.terminal_width(), color=color, verbose=args.verbose)
