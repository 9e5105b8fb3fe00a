"""Options that several subcommands share."""

from __future__ import annotations

import argparse
from pathlib import Path


class _Once(argparse.Action):
    """An option whose second value would silently take the place of the first."""

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
    """`--redact`, the same for all that can be shown to strangers."""
    text = "replace UUIDs, serials, addresses, paths, names of hosts, users and processes"
    parser.add_argument("--redact", action="store_true", help=text)


def seconds(text: str) -> float:
    """A time limit."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 86400:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds above 0 and below 86400 is wanted")
    return value
