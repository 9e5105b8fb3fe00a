"""One `gpudoctor check`: read the facts, run the probes, have the report written."""

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
from gpudoctor.exits import COULD_NOT, OK, InterruptedBySignal, hold_signals, is_terminal, printable, say
from gpudoctor.facts.measurements import Measurements, ProbeProblem
from gpudoctor.facts.missing import Missing
from gpudoctor.facts.node import Node
from gpudoctor.facts.nvml_ahead import dismiss_ahead, order_ahead
from gpudoctor.facts.stand_in import root_of
from gpudoctor.plugins import all_checks
from gpudoctor.probes.engine import Place, place_of

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
    started_s, began = time.time(), time.monotonic()
    checks = all_checks()
    config = load_config(args.config, os.environ, checks)
    required = (*config.require, *args.require)
    named = select(checks, args.ids, required=required)
    # what is required is run too: a check that nobody ran gives no verdict
    chosen = tuple(c for c in checks if c in named or any(matches(c, word) for word in required))
    level = args.level or _level_for(named if args.ids else (), config.level)
    left_out = _left_out(chosen, (*config.skip, *args.skip))
    asked = tuple(c for c in chosen if c not in left_out)
    from gpudoctor.loading import burn_duration_s, count_again, measure, puts_load

    duration_s = burn_duration_s(args.duration, level, config.burn_duration_s)
    progress = _progress_lines(duration_s) if args.progress else _progress()
    place, loaded = place_of(os.environ), puts_load(asked, level)
    if place is not None and place.rank:
        dismiss_ahead()
        return _host_rank(place) if loaded else OK
    if args.node is None and not args.fault:
        order_ahead(root_of(os.environ))
    # imported while the driver is asked: it takes as long
    from gpudoctor.check_report import nothing_read, write_report
    from gpudoctor.report.judge import Question

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
    seats = _seats(place) if loaded else None
    sourced = Sourced(nothing_read(args.node))
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
    passed_s = time.monotonic() - began
    return write_report(sourced.node, measurements, question, args, started_s, passed_s, signals)


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


def _left_out(chosen: tuple[Check, ...], words: tuple[str, ...]) -> tuple[Check, ...]:
    if words:
        select(all_checks(), skipped=words)  # a word that names no check is an error
    return tuple(c for c in chosen if any(matches(c, word) for word in words))


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
    if not is_terminal(sys.stderr):
        return None

    def show(text: str) -> None:
        sys.stderr.write(f"\r\x1b[2K{printable(text)[:76]}")
        sys.stderr.flush()

    return show


def _progress_lines(duration_s: float | None) -> Callable[[str], None]:
    from gpudoctor.progress import progress_to_stderr

    return progress_to_stderr(duration_s)
