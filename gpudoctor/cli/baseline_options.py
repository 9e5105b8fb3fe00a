"""What may be asked of `gpudoctor baseline`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpudoctor.cli.options import output_option


def add_baseline_options(parser: argparse.ArgumentParser) -> None:
    """Add save and compare; `baseline_command` is the one that was given."""
    commands = parser.add_subparsers(dest="baseline_command", required=True, metavar="COMMAND")
    text = "add a healthy run to the baseline of its node; a file that is there must be of the same node"
    save = commands.add_parser("save", help=text, description=text, allow_abbrev=False)
    _report_options(save)
    save.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the baseline (default: gpudoctor-baseline-HOST.json here)"
    )
    text = "say what is not as in the baseline: a loss of 5 % warns and of 10 % fails, once three runs are saved"
    compare = commands.add_parser("compare", help=text.replace("%", "%%"), description=text, allow_abbrev=False)
    compare.add_argument("baseline", type=Path, metavar="BASELINE", help="what baseline save wrote")
    _report_options(compare)
    output_option(compare, "write the comparison to FILE, atomically")
    compare.add_argument("--format", choices=("text", "json"), help="default: text")
    compare.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")
    compare.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    compare.epilog = (
        "exit codes: 0 no failure, 1 a failure, 2 gpudoctor could not do its work, 3 nothing of what was saved was "
        "measured now, or the report itself is unknown"
    )


def _report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", nargs="?", metavar="REPORT", help="a report of check --json; - for stdin")
    parser.add_argument(
        "--node", metavar="SOURCE", help="instead of a report: check this source at level quick (see check --node)"
    )
    parser.add_argument("--fault", action="append", default=[], metavar="NAME[@GPU]", help="put a fault on the source")
