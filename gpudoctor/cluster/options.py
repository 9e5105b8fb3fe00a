"""What may be asked of `gpudoctor cluster`."""

from __future__ import annotations

import argparse

from gpudoctor.cluster.check_options import add_check_options, add_rank_options
from gpudoctor.cluster.report_options import add_report_options


def add_cluster_options(cluster: argparse.ArgumentParser) -> None:
    """Add check, rank and report; `cluster_command` is the one that was given."""
    commands = cluster.add_subparsers(dest="cluster_command", required=True, metavar="COMMAND")
    for name, text, add_options in (
        ("check", "check every node of a job or allocation, then the links between them", add_check_options),
        ("rank", "be one process of such a check, where torchrun, srun or mpirun has started it", add_rank_options),
        ("report", "read any number of reports, and say which nodes are bad and why", add_report_options),
    ):
        add_options(commands.add_parser(name, help=text, description=text, allow_abbrev=False))
