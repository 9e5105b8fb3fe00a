"""`gpudoctor cluster`: its commands check and rank are in cluster_check.py, report in cluster_report.py."""

from __future__ import annotations

import argparse

from gpudoctor.cli.commands import cluster_check, cluster_report

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
    """Add the commands check, rank and report; `cluster_command` will hold the chosen one."""
    commands = cluster.add_subparsers(dest="cluster_command", required=True, metavar="COMMAND")
    for name, (text, add_command_options, _) in _COMMANDS.items():
        add_command_options(commands.add_parser(name, help=text, description=text, allow_abbrev=False))


def run(args: argparse.Namespace) -> int:
    """Run the chosen command; return its exit code."""
    return _COMMANDS[args.cluster_command][2](args)


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """Write an error as a JSON document if JSON was requested; return the exit code."""
    if args.cluster_command == "report":
        return cluster_report.write_error(args, message, code)
    return cluster_check.write_error(args, message, code)
