"""What may be asked of `gpudoctor cluster`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpudoctor.cli.cluster_check_options import add_check_options, add_rank_options
from gpudoctor.cli.options import output_option


def add_cluster_options(cluster: argparse.ArgumentParser) -> None:
    """Add check, rank and report; `cluster_command` is the one that was given."""
    commands = cluster.add_subparsers(dest="cluster_command", required=True, metavar="COMMAND")
    for name, text, add_options in (
        ("check", "check every node of a job or allocation, then the links between them", add_check_options),
        ("rank", "be one process of such a check, where torchrun, srun or mpirun has started it", add_rank_options),
        ("report", "read any number of reports, and say which nodes are bad and why", _add_report_options),
    ):
        add_options(commands.add_parser(name, help=text, description=text, allow_abbrev=False))


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="DIR|FILE|-",
        help="reports of check --json: folders with all below (*.json, *.jsonl, *.ndjson, .gz too), files of one "
        "report or of one a line, - for stdin while lines arrive",
    )
    parser.add_argument(
        "--against", action="append", default=[], metavar="OLDER", help="an older set: say what changed since"
    )
    parser.add_argument("--format", choices=("text", "json", "html"), help="default: text")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")
    output_option(parser, "write to FILE, atomically")
    parser.add_argument(
        "--good", type=Path, metavar="FILE", help="write the hosts that pass or warn to FILE, one a line"
    )
    parser.add_argument(
        "--bad", type=Path, metavar="FILE", help="write the hosts that fail; one that is unknown stands in neither"
    )
    parser.add_argument(
        "--exclude-expr",
        action="store_true",
        help="print the failing nodes only, as a Slurm hostlist expression: sbatch --exclude=$(...)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="every node and every figure")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.epilog = (
        "exit codes: 0 all nodes fit, 1 a node fails, 2 nothing to read, 3 none fails but some are not known (a report "
        "that cannot be read counts as such a node)"
    )
