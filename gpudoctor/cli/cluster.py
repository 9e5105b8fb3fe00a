"""`gpudoctor cluster`: its commands check, rank and report."""

from __future__ import annotations

import argparse

from gpudoctor.cli import cluster_check, cluster_report

_COMMANDS = {
    "check": (
        "check every node of a job or allocation, then the links between them",
        cluster_check.add_check_options,
        cluster_check.run_check,
    ),
    "rank": (
        "be one process of such a check, where torchrun, srun or mpirun has started it",
        cluster_check.add_rank_options,
        cluster_check.run_rank,
    ),
    "report": (
        "read any number of reports, and say which nodes are bad and why",
        cluster_report.add_options,
        cluster_report.run,
    ),
}


def add_options(cluster: argparse.ArgumentParser) -> None:
    """Add check, rank and report; `cluster_command` is the one that was given."""
    commands = cluster.add_subparsers(dest="cluster_command", required=True, metavar="COMMAND")
    for name, (text, add_command_options, _) in _COMMANDS.items():
        add_command_options(commands.add_parser(name, help=text, description=text, allow_abbrev=False))


def run(args: argparse.Namespace) -> int:
    """Run the command that was given; give its exit code."""
    return _COMMANDS[args.cluster_command][2](args)
