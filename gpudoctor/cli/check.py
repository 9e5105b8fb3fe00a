"""One `gpudoctor check`: the options as a request, the checked node as a report on stdout, under its signals."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from gpudoctor import api
from gpudoctor.api import CheckRequest, Sourced
from gpudoctor.exits import COULD_NOT, OK, InterruptedBySignal, hold_signals, say
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.nvml.collector_ahead import dismiss_ahead, order_ahead
from gpudoctor.facts.nvml.fake_driver_context import root_of
from gpudoctor.probes.runner.launch_engine import Place, place_of
from gpudoctor.progress import progress_to_stderr, terminal_progress


def read_source(
    name: str | None,
    faults: list[str],
    deadline_s: float,
    progress: Callable[[str], None] | None = None,
    on_interrupt: Callable[[Node], None] | None = None,
) -> Sourced:
    """As `api.read_source`; if there is no `progress`, a terminal on stderr shows it."""
    return api.read_source(name, faults, deadline_s, progress or terminal_progress(), on_interrupt)


def check(args: argparse.Namespace) -> int:
    """Run `gpudoctor check`; give its exit code. Raise UserError if it could not do its work."""
    prep = api.prepared(_request(args))
    progress = progress_to_stderr(prep.burn_s) if args.progress else terminal_progress()
    place = place_of(os.environ)
    if place is not None and place.rank:
        dismiss_ahead()
        return _host_rank(place) if prep.wants_ranks else OK
    if args.node is None and not args.fault:
        order_ahead(root_of(os.environ))
    # imported while the driver is asked: it takes as long
    from gpudoctor.cli.check_output import write_report

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
    from gpudoctor.probes.runner.local_workers import host_rank

    try:
        why_not = host_rank(place)
    except InterruptedBySignal as stop:
        return stop.exit_code
    if why_not is None:
        return OK
    say(f"error: {why_not}")
    return COULD_NOT
