"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpudoctor.exits import write_stdout
from gpudoctor.facts.deadlines import COLLECTION
from gpudoctor.lazy_import import lazy

if TYPE_CHECKING:
    from gpudoctor import api, progress
    from gpudoctor.report import output_files
else:
    api = lazy("gpudoctor.api")
    progress = lazy("gpudoctor.progress")
    output_files = lazy("gpudoctor.report.output_files")


class _Once(argparse.Action):
    """An option whose second value would silently replace the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"argument {option_string}: given twice ({getattr(namespace, self.dest)}, {values})")
        setattr(namespace, self.dest, values)


def output_option(parser: argparse.ArgumentParser, text: str) -> None:
    """`-o FILE`, once; `text` is its help."""
    parser.add_argument("-o", "--output", type=Path, action=_Once, metavar="FILE", help=text)


def redact_option(parser: argparse.ArgumentParser) -> None:
    """`--redact`, the same for everything that can be shown to strangers."""
    text = "replace UUIDs, serials, addresses, paths, names of hosts, users and processes"
    parser.add_argument("--redact", action="store_true", help=text)


def format_options(parser: argparse.ArgumentParser, *formats: str, default: str | None = None) -> None:
    """`--format` and `--json`. Without `default`, None means text."""
    text = None if default else "default: text"
    parser.add_argument("--format", choices=formats, default=default, help=text)
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")


def color_option(parser: argparse.ArgumentParser) -> None:
    """`--color`."""
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def node_option(parser: argparse.ArgumentParser, text: str) -> None:
    """`--node SOURCE`; `text` is its help."""
    parser.add_argument("--node", metavar="SOURCE", help=text)


def fault_option(parser: argparse.ArgumentParser, text: str = "put a fault on the node; makes it SIMULATED") -> None:
    """`--fault NAME[@GPU]`, any number of times."""
    parser.add_argument("--fault", action="append", default=[], metavar="NAME[@GPU]", help=text)


def source_options(parser: argparse.ArgumentParser, without: str = "; without it, this machine") -> None:
    """`--node` and `--fault` of commands that read one node; `without` says what no `--node` means."""
    node_option(
        parser,
        "a facts file, an nvidia-smi dump, a directory of dumps, a bug report, a report JSON, a bundle, "
        f"a recorded watch, - for stdin, or a simulated node's name (see: gpudoctor nodes){without}",
    )
    fault_option(parser)


def facts_deadline_option(parser: argparse.ArgumentParser, text: str = "for reading the facts (60)") -> None:
    """`--deadline SECONDS`."""
    parser.add_argument("--deadline", type=seconds, metavar="SECONDS", help=text)


def read_source(args: argparse.Namespace) -> api.Sourced:
    """What `--node`, `--fault` and `--deadline` name; a terminal on stderr shows the progress. Raise UserError."""
    deadline_s = args.deadline or COLLECTION.seconds
    return api.read_source(args.node, args.fault, deadline_s, progress.terminal_progress())


def to_file(args: argparse.Namespace) -> bool:
    """Whether `-o` names a file; `-` is stdout."""
    return args.output is not None and str(args.output) != "-"


def write_output(text: str, args: argparse.Namespace) -> None:
    """Write to the file that `-o` names, atomically, else to stdout. Raise UserError."""
    if to_file(args):
        output_files.write_file(args.output, text)
    else:
        write_stdout(text)


def seconds(text: str) -> float:
    """A time limit."""
    return _number(text, lambda value: 0 < value < 86400, "a number of seconds above 0 and below 86400")


def interval(text: str) -> float:
    """Seconds between samples."""
    return seconds_between(text, 0.2, 3600)


def seconds_between(text: str, least: float, most: float) -> float:
    """Seconds of a range, its ends included."""
    return _number(text, lambda value: least <= value <= most, f"a number of seconds from {least:g} to {most:g}")


def rate(text: str) -> float:
    """A rate in Gbit/s."""
    return _number(text, lambda value: 0 < value < 1e6, "a rate in Gbit/s, above 0,")


def up_to(largest: int, wanted: str = "a number") -> Callable[[str], int]:
    """A reader of whole numbers from 1 to `largest`; `wanted` begins the message for others."""

    def whole_number(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= largest:
            raise argparse.ArgumentTypeError(f"{text!r}: {wanted} from 1 to {largest} is wanted")
        return int(text)

    return whole_number


def _number(text: str, fits: Callable[[float], bool], wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not fits(value):  # nan never does
        raise argparse.ArgumentTypeError(f"{text!r}: {wanted} is wanted")
    return value
