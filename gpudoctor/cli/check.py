"""One `gpudoctor check`: the options as a request, the checked node as a report on stdout, under its signals."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from gpudoctor import api
from gpudoctor.api import CheckRequest, Sourced
from gpudoctor.exits import COULD_NOT, OK, InterruptedBySignal, hold_signals, is_terminal, printable, say
from gpudoctor.facts.node import Node
from gpudoctor.facts.nvml_ahead import dismiss_ahead, order_ahead
from gpudoctor.facts.stand_in import root_of
from gpudoctor.probes.engine import Place, place_of


def read_source(
    name: str | None,
    faults: list[str],
    deadline_s: float,
    progress: Callable[[str], None] | None = None,
    on_interrupt: Callable[[Node], None] | None = None,
) -> Sourced:
    """As `api.read_source`; if there is no `progress`, a terminal on stderr shows it."""
    return api.read_source(name, faults, deadline_s, progress or _progress(), on_interrupt)


def check(args: argparse.Namespace) -> int:
    """Run `gpudoctor check`; give its exit code. Raise UserError if it could not do its work."""
    prep = api.prepared(_request(args))
    progress = _progress_lines(prep.burn_s) if args.progress else _progress()
    place = place_of(os.environ)
    if place is not None and place.rank:
        dismiss_ahead()
        return _host_rank(place) if prep.wants_ranks else OK
    if args.node is None and not args.fault:
        order_ahead(root_of(os.environ))
    # imported while the driver is asked: it takes as long
    from gpudoctor.check_report import write_report

    report = api.examined(prep, argv=args.argv, place=place, progress=progress, hold_signals=hold_signals)
    return write_report(report, args)


def _request(args: argparse.Namespace) -> CheckRequest:
    return CheckRequest(
        node=args.node,
        faults=tuple(args.fault),
        only=tuple(args.ids),
        skip=tuple(args.skip),
        require=tuple(args.require),
        level=args.level,
        duration=args.duration,
        gpu=args.gpu,
        backend=args.backend,
        ranks=args.ranks,
        inject=tuple(args.inject),
        force=args.force,
        profile=args.profile,
        config=args.config,
        deadline_s=args.deadline,
        fail_on=args.fail_on,
        # the page's tables of GPUs and of the topology are facts
        include_facts=args.include_facts or args.format == "html",
        redact=args.redact,
    )


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
