"""Arguments to calls; each subcommand imports its room when it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from gpudoctor.cli.parsers import parsed
from gpudoctor.errors import UserError
from gpudoctor.exits import OK, catch_signals, guarded, write_stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and give its exit code (0, 1, 2, 3; 128 + n for a signal)."""
    asked: list[argparse.Namespace] = []

    def run() -> int:
        catch_signals()
        given = list(sys.argv[1:] if argv is None else argv)
        args = parsed(given)
        # an argument need not be UTF-8, a report has to be
        args.argv = [word.encode("utf-8", "backslashreplace").decode() for word in given]
        asked.append(args)
        if args.command != "check":
            return _COMMANDS[args.command](args)
        _have_driver_read(args)
        from gpudoctor.cli.check import check

        return check(args)

    def on_error(message: str, code: int) -> int:
        if asked and asked[0].command == "plan":
            from gpudoctor.cli.plan import write_plan_error

            return write_plan_error(asked[0], message, code)
        if not asked or asked[0].command != "check":
            return code
        from gpudoctor.cli.check_output import write_error

        return write_error(asked[0], message, code)

    return guarded(run, on_error)


def _have_driver_read(args: argparse.Namespace) -> None:
    """Have the collector that waits begin, before the checks are imported: that takes as long as reading.

    Not if an option is left that only the checks can understand: for a wrong one the driver is not to be asked.
    """
    from gpudoctor.facts.nvml.collector_ahead import order_ahead
    from gpudoctor.facts.nvml.fake_driver_context import root_of
    from gpudoctor.probes.runner.launch_engine import place_of

    place = place_of(os.environ)
    later = (args.node, args.fault, args.ids, args.skip, args.require, args.config, args.duration)
    if not any(later) and args.node is None and (place is None or not place.rank):
        order_ahead(root_of(os.environ))


def _list(args: argparse.Namespace) -> int:
    from gpudoctor.plugins import all_checks

    checks = all_checks()
    if args.json:
        import msgspec

        rows = [{"id": c.id, "level": c.level, "title": c.title} for c in checks]
        write_stdout(msgspec.json.encode(rows).decode() + "\n")
        return OK
    width = max(len(c.id) for c in checks)
    write_stdout("".join(f"{c.id:<{width}}  {c.level:<8}  {c.title}\n" for c in checks))
    return OK


def _explain(args: argparse.Namespace) -> int:
    if args.id.startswith("diagnose."):
        return _explain_cause(args.id)
    from gpudoctor.checks.core.registry import select
    from gpudoctor.plugins import all_checks
    from gpudoctor.report.check_docs import page_text

    for check in select(all_checks(), [args.id]):
        write_stdout(page_text(check))
    return OK


def _explain_cause(name: str) -> int:
    from gpudoctor.diagnose.causes import page_names, page_of

    page = page_of(name)
    if page is None:
        names = ", ".join(f"diagnose.{known}" for known in page_names())
        raise UserError(f"{name}: no such page; there are {names}, and one for each word of cause.what")
    write_stdout(page)
    return OK


def _facts(args: argparse.Namespace) -> int:
    import msgspec

    from gpudoctor.cli.check import read_source
    from gpudoctor.facts.deadlines import COLLECTION
    from gpudoctor.facts.model.node import to_json
    from gpudoctor.facts.redaction.redact import redacted
    from gpudoctor.json_text import terminal_safe
    from gpudoctor.report.output_files import write_file

    node = read_source(args.node, args.fault, args.deadline or COLLECTION.seconds).node
    data = msgspec.json.format(to_json(redacted(node) if args.redact else node), indent=2)
    text = terminal_safe(data).decode() + "\n"
    if args.output is None or str(args.output) == "-":
        write_stdout(text)
    else:
        write_file(args.output, text)
    return OK


def _bundle(args: argparse.Namespace) -> int:
    from gpudoctor.cli.bundle import bundle

    return bundle(args)


def _nodes(args: argparse.Namespace) -> int:
    from gpudoctor.facts.simulated.load import faults, node_titles

    titles = node_titles()
    width = max(len(name) for name in titles)
    lines = ["Simulated nodes (--node NAME):", *(f"  {name:<{width}}  {title}" for name, title in titles.items())]
    kit = faults()
    width = max(len(fault.name) for fault in kit)
    lines += ["", "Faults (--fault NAME[@GPU]), with the check that finds them:"]
    lines += [f"  {fault.name:<{width}}  {fault.check}: {fault.title}" for fault in kit]
    write_stdout("\n".join(lines) + "\n")
    return OK


def _schema(args: argparse.Namespace) -> int:
    import msgspec

    if args.of == "report":
        from gpudoctor.report.json import shipped_schema

        write_stdout(shipped_schema())
        return OK
    schema = msgspec.json.schema(_document_type(args.of))
    write_stdout(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n")
    return OK


def _document_type(name: str) -> type:
    if name == "facts":
        from gpudoctor.facts.model.node import Node

        return Node
    if name == "cluster":
        from gpudoctor.cluster.check.report import ClusterReport

        return ClusterReport
    if name == "fleet":
        from gpudoctor.cluster.fleet.model import Fleet

        return Fleet
    if name == "comparison":
        from gpudoctor.cluster.baseline.compare import Comparison

        return Comparison
    if name == "plan":
        from gpudoctor.plan.model import Plan

        return Plan
    from gpudoctor.config import Config

    return Config


def _config(args: argparse.Namespace) -> int:
    from gpudoctor.config import as_yaml, load_config
    from gpudoctor.plugins import all_checks

    checks = all_checks()
    write_stdout(as_yaml(load_config(args.config, os.environ, checks), checks))
    return OK


def _fake_driver(args: argparse.Namespace) -> int:
    if args.node is None:
        raise UserError("fake-driver wants --node SOURCE: whose driver is to be played (see: gpudoctor nodes)")
    if not any(getattr(args, "program", [])[:1]):
        raise UserError("fake-driver wants a program behind --, as in: gpudoctor fake-driver --node NAME -- nvitop -1")
    from gpudoctor.cli.fake_driver import fake_driver

    return fake_driver(args)


def _watch(args: argparse.Namespace) -> int:
    from gpudoctor.cli.watch import watch

    return watch(args)


def _tui(args: argparse.Namespace) -> int:
    if args.serve is not None:
        from gpudoctor.tui.web.serve import serve

        return serve(args)
    if args.serve_token is not None:
        raise UserError("--serve-token goes with --serve")
    from gpudoctor.tui.start import start

    return start(args)


def _plan(args: argparse.Namespace) -> int:
    from gpudoctor.cli.plan import plan

    return plan(args)


def _cluster(args: argparse.Namespace) -> int:
    if args.cluster_command == "report":
        from gpudoctor.cli.cluster_report import cluster_report

        return cluster_report(args)
    if args.cluster_command == "rank":
        from gpudoctor.cli.cluster_rank import cluster_rank

        return cluster_rank(args)
    from gpudoctor.cli.cluster_check import cluster_check

    return cluster_check(args)


def _agent(args: argparse.Namespace) -> int:
    from gpudoctor.cli.agent import agent

    return agent(args)


def _diagnose(args: argparse.Namespace) -> int:
    from gpudoctor.cli.diagnose import run_diagnose

    return run_diagnose(args)


def _baseline(args: argparse.Namespace) -> int:
    from gpudoctor.cli.baseline import baseline

    return baseline(args)


_COMMANDS = {
    "list": _list,
    "explain": _explain,
    "facts": _facts,
    "bundle": _bundle,
    "nodes": _nodes,
    "fake-driver": _fake_driver,
    "watch": _watch,
    "tui": _tui,
    "plan": _plan,
    "cluster": _cluster,
    "agent": _agent,
    "diagnose": _diagnose,
    "baseline": _baseline,
    "schema": _schema,
    "config": _config,
}
