"""`gpudoctor cluster check` and `cluster rank`: every node of a job or allocation, then the links between them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import get_args

from gpudoctor.cli import options
from gpudoctor.cluster.check import LAUNCHERS
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import COULD_NOT, FailOn
from gpudoctor.text.json_text import json_line
from gpudoctor.text.output import is_terminal, rewrite_line, write_stderr

with lazy_imports():
    from gpudoctor.cluster.check import coordinator, launch_members, launcher_commands, model

    # every rank imports this file, but only one of them renders a report
    from gpudoctor.cluster.check import text as cluster_text

LEVELS = ("quick", "standard", "full")
_nodes = options.up_to(100_000, "a number of nodes")


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of check: how to start a process on each node, and what all of them do."""
    parser.add_argument(
        "--launcher", choices=("auto", *LAUNCHERS), default="auto", help="what places one process on each node"
    )
    parser.add_argument("-N", "--nodes", type=_nodes, metavar="NODES", help="how many (default: the whole allocation)")
    parser.add_argument("--hosts", metavar="HOST,...", help="for mpirun")
    parser.add_argument("--hostfile", metavar="FILE", help="for mpirun")
    parser.add_argument(
        "--launcher-args", metavar="WORDS", help="more for srun or mpirun, in one argument: '-p gpu --gres=gpu:8'"
    )
    _common(parser)


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of rank: where the processes meet, and what all of them do."""
    parser.add_argument("-N", "--nodes", type=_nodes, metavar="NODES", help="if the engine does not give it (k8s)")
    parser.add_argument(
        "--meet",
        dest="rendezvous_host",
        metavar="HOST",
        help="where the first process runs, if neither the engine nor MASTER_ADDR tells",
    )
    parser.add_argument("--join", help=argparse.SUPPRESS)
    parser.add_argument("--numbered", help=argparse.SUPPRESS)
    parser.add_argument("--token-fd", type=int, help=argparse.SUPPRESS)
    _common(parser)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--level",
        choices=LEVELS,
        default="standard",
        help="of each node's own check (default: standard); quick puts no load on GPUs, between nodes neither",
    )
    parser.add_argument(
        "--backend", choices=("auto", "nccl", "gloo"), default="auto", help="gloo: CPU ranks, at any level"
    )
    parser.add_argument(
        "--ranks", type=options.up_to(64), metavar="N", help="CPU ranks a node between nodes (default 1)"
    )
    parser.add_argument(
        "--node",
        "--source",  # torchrun would take --node for an abbreviation of its --node-rank
        metavar="SOURCE",
        help="check this instead of each machine (see: gpudoctor nodes); --source under torchrun",
    )
    parser.add_argument(
        "--fault",
        dest="faults",
        action="append",
        default=[],
        metavar="[HOST:]NAME[@GPU]",
        help="put a fault on the simulated node, or on that of one host",
    )
    parser.add_argument(
        "--skip", action="append", default=[], metavar="ID|DOMAIN", help="leave out of each node's check"
    )
    parser.add_argument("--profile", metavar="NAME|FILE", help="of each node's check")
    parser.add_argument("--config", type=Path, metavar="FILE", help="of each node's check; at this path on every node")
    parser.add_argument(
        "--at-least",
        dest="at_least_gbit_s",
        type=options.rate,
        metavar="GBIT_S",
        help="what every pair of nodes has to reach; else: as the others do",
    )
    parser.add_argument(
        "--deadline",
        dest="deadline_s",
        type=options.seconds,
        metavar="SECONDS",
        help="time for all nodes to join, and to measure each group of them (default: 60; groups on CPU ranks: 20)",
    )
    options.add_formats(parser, "text", "json", default="text")
    options.add_output(parser, "write the report to FILE, atomically")
    parser.add_argument(
        "--reports", type=Path, metavar="DIR", help="keep each node's own report there, for gpudoctor cluster report"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the secret that the job's processes share (default: GPUDOCTOR_CLUSTER_TOKEN)",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="run a rank on many nodes without a token, although any host on the network could join as a node",
    )
    parser.add_argument("--fail-on", choices=get_args(FailOn), default="fail", help="what exits with 1")
    parser.add_argument("-v", "--verbose", action="store_true", help="every pair, and every finding")
    parser.add_argument("--progress", action="store_true", help="say on stderr what goes on, as JSON lines")
    options.add_color(parser)


def run_check(args: argparse.Namespace) -> int:
    """Start a process on each node, or run as one that an engine started; return the exit code."""
    return launch_members.run_cluster_check(options.request_from(args, model.ClusterCheckRequest), _output(args))


def run_rank(args: argparse.Namespace) -> int:
    """Run as one of the processes that an engine started; return the exit code."""
    return launch_members.run_rank(options.request_from(args, model.ClusterCheckRequest), _output(args))


def _output(args: argparse.Namespace) -> model.ClusterOutput:
    return model.ClusterOutput(lambda made: write_report(made, args), lambda text: _show(text, args))


def write_report(made: model.ClusterReport, args: argparse.Namespace) -> int:
    """Write the report to the file that `-o` names, else to stdout; return its exit code.

    An error is on stderr already; in text format it is written nowhere else.
    """
    if made.error is not None and args.format != "json":
        return made.exit_code

    def rendered(made: model.ClusterReport, to_file: bool) -> str:
        if args.format == "json":
            return json_line(made)
        color = options.output_color(args.color, to_file=to_file)
        return cluster_text.render_cluster_text(made, width=options.terminal_width(), color=color, verbose=args.verbose)

    return made.exit_code if options.write_as_asked(made, args, rendered) else COULD_NOT


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """Write an error that no coordinator has written as a JSON document if JSON was requested; return the exit code.

    Not if an engine has started this process as one of several, which share a stdout.
    """
    if args.cluster_command == "check" and args.format == "json" and not launcher_commands.in_engine(os.environ):
        write_report(coordinator.error_report(args.level, args.launcher, args.nodes, args.argv, message, code), args)
    return code


def _show(text: str, args: argparse.Namespace) -> None:
    """Show progress on stderr: JSON lines with --progress, one rewritten line on a terminal; "" clears that line."""
    if args.progress:
        write_stderr(json.dumps({"progress": text}) + "\n" if text else "")
    elif is_terminal(sys.stderr):
        rewrite_line(text)
