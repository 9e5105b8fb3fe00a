"""One `gpudoctor check`: read the facts, run the probes, judge, write the report."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gpudoctor.checks.registry import Check, Level, matches, select
from gpudoctor.config import load_config, threshold_overrides
from gpudoctor.errors import UserError
from gpudoctor.exits import (
    COULD_NOT,
    OK,
    ClosedStdoutError,
    InterruptedBySignal,
    hold_signals,
    printable,
    say,
    write_stdout,
)
from gpudoctor.facts.measurements import Measurements, ProbeProblem
from gpudoctor.facts.missing import Missing
from gpudoctor.facts.node import Node, Source
from gpudoctor.plugins import all_checks
from gpudoctor.probes.engine import Place, place_of
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

if TYPE_CHECKING:
    from gpudoctor.probes.seats import Seats


class Sourced(msgspec.Struct, frozen=True):
    """Facts as read, with the measurements of a report that is judged again."""

    node: Node
    measurements: Measurements | None = None


def read_source(
    name: str | None,
    faults: list[str],
    deadline_s: float,
    progress: Callable[[str], None] | None = None,
    on_interrupt: Callable[[Node], None] | None = None,
) -> Sourced:
    """The facts of this machine or of `--node SOURCE`, with `--fault`s put on them. Raise UserError.

    `progress` gets a line for people now and then; without it a terminal on stderr does.
    `on_interrupt` gets what was known of this machine when an exception ends the reading.
    """
    if name is None:
        if faults:
            raise UserError("--fault is for simulated nodes and captures: name one with --node (see: gpudoctor nodes)")
        from gpudoctor.facts.collect import collect_live

        progress = progress or _progress()
        return Sourced(collect_live(deadline_s=deadline_s, progress=progress, on_interrupt=on_interrupt))
    from gpudoctor.facts.source import load_source

    loaded = load_source(name, stdin=sys.stdin.buffer if name == "-" and sys.stdin else None)
    if not faults:
        return Sourced(loaded.node, loaded.measurements)
    from gpudoctor.facts.simulated import apply_faults

    # figures measured on the unbroken node say nothing of the broken one
    return Sourced(apply_faults(loaded.node, faults))


def check(args: argparse.Namespace) -> int:
    """Run `gpudoctor check`; give its exit code. Raise UserError where it could not do its work."""
    started, began = _now(), time.monotonic()
    checks = all_checks()
    config = load_config(args.config, os.environ, checks)
    required = (*config.require, *args.require)
    named = select(checks, args.ids, required=required)
    # what is required is run too: a check that nobody ran gives no verdict
    chosen = tuple(c for c in checks if c in named or any(matches(c, word) for word in required))
    level = args.level or _level_for(named if args.ids else (), config.level)
    left_out = _left_out(chosen, (*config.skip, *args.skip))
    asked = tuple(c for c in chosen if c not in left_out)
    question = Question(
        checks=asked,
        left_out=left_out,
        required=required,
        level=level,
        gpu=args.gpu,
        profile=args.profile or (None if config.profile == "auto" else config.profile),
        fail_on=args.fail_on or config.fail_on,
        expect=config.expect,
        limit_overrides=threshold_overrides(config),
        suppress=config.suppress,
    )
    from gpudoctor.loading import burn_duration_s, count_again, measure, puts_load

    duration_s = burn_duration_s(args.duration, level, config.burn_duration_s)
    progress = _progress_lines(duration_s) if args.progress else _progress()
    place, loaded = place_of(os.environ), puts_load(asked, level)
    if place is not None and place.rank:
        return _host_rank(place) if loaded else OK
    seats = _seats(place) if loaded else None
    sourced = Sourced(_nothing_read(args.node))
    measurements: Measurements | None = None
    partial: list[Measurements] = []
    half_read: list[Node] = []
    try:
        deadline_s = args.deadline or config.deadline_s
        sourced = read_source(args.node, args.fault, deadline_s, progress, half_read.append)
        measurements = sourced.measurements if args.backend == "auto" else None
        if measurements is None:
            measurements = measure(sourced.node, asked, level, args, progress, partial.append, duration_s, seats)
            partial.append(measurements)
            measurements = count_again(sourced.node, measurements, deadline_s, progress)
        signals = hold_signals()
    except InterruptedBySignal as stop:
        signals = hold_signals(stop)
        sourced = Sourced(half_read[0]) if half_read else sourced
        measurements = _cut_short(partial[0] if partial else Measurements(), f"interrupted by {stop}")
    if seats is not None and not signals:
        seats.close()
    node = sourced.node
    run = Run(
        id=_run_id(),
        started_at=started,
        duration_s=round(time.monotonic() - began, 3),
        level=level,
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


def _level_for(named: tuple[Check, ...], usual: Level) -> Level:
    """The usual level; full where every check that the command line names runs at no lower one.

    Whoever has configured quick wants no load, and a burn must be asked for.
    """
    return "full" if usual == "standard" and named and all(check.level == "full" for check in named) else usual


def _seats(place: Place | None) -> Seats | None:
    """The places of the ranks where an engine has started this process as the first of several."""
    if place is None:
        return None
    from gpudoctor.probes.seats import Seats

    return Seats(place)


def _host_rank(place: Place) -> int:
    """Be one of the others: they host ranks, and it is the first that checks and reports."""
    from gpudoctor.probes.seats import host_rank

    try:
        why_not = host_rank(place)
    except InterruptedBySignal as stop:
        return stop.exit_code
    if why_not is None:
        return OK
    say(f"error: {why_not}")
    return COULD_NOT


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
        run=Run(_run_id(), _now(), 0.0, args.level or "standard", _named_source(args.node), tuple(args.argv)),
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

        report = Redaction(_nothing_read(args.node)).of(report)
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
    color = wants_color(args.color, {} if to_file else os.environ, is_terminal=not to_file and _is_terminal(sys.stdout))
    return render_text(report, width=terminal_width(), color=color, verbose=args.verbose)


def _to_file(args: argparse.Namespace) -> bool:
    return args.output is not None and str(args.output) != "-"


def _format(args: argparse.Namespace) -> str:
    return args.format or "text"


def _left_out(chosen: tuple[Check, ...], words: tuple[str, ...]) -> tuple[Check, ...]:
    if words:
        select(all_checks(), skipped=words)  # a word that names no check is an error
    return tuple(c for c in chosen if any(matches(c, word) for word in words))


def _named_source(name: str | None) -> SourceSummary:
    return SourceSummary("live" if name is None else "facts", printable(name or ""))


def _nothing_read(name: str | None) -> Node:
    """What is known when a signal came before any fact."""
    source = _named_source(name)
    return Node(source=Source(kind=source.kind, name=source.name))


def _cut_short(partial: Measurements, why: str) -> Measurements:
    """What had been measured; nothing of it is a pass, since what was to follow is not known."""
    have = {
        "collective": bool(partial.collectives),
        "link": bool(partial.host_links),
        "compute": bool(partial.compute),
        "train": partial.training is not None,
        "strategy": partial.strategies is not None,
        "deepspeed": partial.deepspeed is not None,
        "tensorflow": partial.tensorflow is not None,
        "frameworks": bool(partial.frameworks),
        "torch": partial.torch_view,
    }
    lost = {probe: Missing(why, "failed") for probe, done in have.items() if not done}
    # one of several frameworks that gave no answer is no pass beside the others
    lost |= {name: gap for name, gap in partial.not_run.items() if name.startswith("frameworks.")}
    problem = ProbeProblem("launch", "error", why)
    return msgspec.structs.replace(partial, not_run=lost, problems=(*partial.problems, problem))


def _progress() -> Callable[[str], None] | None:
    """Says on one line of stderr what goes on, on a terminal only."""
    if not _is_terminal(sys.stderr):
        return None

    def show(text: str) -> None:
        sys.stderr.write(f"\r\x1b[2K{printable(text)[:76]}")
        sys.stderr.flush()

    return show


def _progress_lines(duration_s: float | None) -> Callable[[str], None]:
    from gpudoctor.progress import progress_to_stderr

    return progress_to_stderr(duration_s)


def _is_terminal(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    try:
        return bool(isatty and isatty())
    except ValueError:
        return False


def _now() -> str:
    import datetime

    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _run_id() -> str:
    import uuid

    return str(uuid.uuid4())
