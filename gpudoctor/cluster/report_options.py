"""What may be asked of `gpudoctor cluster report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpudoctor.options import output_option


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
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
