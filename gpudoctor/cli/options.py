"""Options that several commands share, the parsers of their values, and writing output to where `-o` says."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

import msgspec

from gpudoctor.facts.deadlines import COLLECTION
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import COULD_NOT
from gpudoctor.text.output import ClosedStdoutError, is_terminal, printable, say, write_stdout

with lazy_imports():
    import pathlib

    from gpudoctor.api import node_check
    from gpudoctor.report import output_files, progress

# argparse's parsers and groups share what adds an option
_Options = argparse._ActionsContainer

NODE_HELP = (
    "a facts file, an nvidia-smi dump, a directory of dumps, a bug report, a report JSON, a bundle, "
    "a recorded watch, - for stdin, or a simulated node's name (see: gpudoctor nodes)"
)
LEVELS = ("quick", "standard", "full", "burn")
_FORMAT_OF = {".json": "json", ".html": "html", ".xml": "junit", ".prom": "prometheus"}
_R = TypeVar("_R", bound=msgspec.Struct)
_D = TypeVar("_D", bound="_Document")


class _Document(Protocol):
    """Any report with an `error` field."""

    @property
    def error(self) -> str | None: ...


def request_from(args: argparse.Namespace, kind: type[_R], **given: object) -> _R:
    """Build a request: fields in `given`, then options of the same name, then defaults; lists become tuples."""
    values = {name: value for name, value in {**vars(args), **given}.items() if name in kind.__struct_fields__}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


class _Once(argparse.Action):
    """An option that may be given only once: argparse would silently let the second value replace the first."""

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


def file_path(name: str) -> pathlib.Path:
    """The type of an option that names a file."""
    return pathlib.Path(name)


def add_output(parser: _Options, text: str) -> None:
    """Add `-o FILE`, which may be given once; `text` is its help."""
    parser.add_argument("-o", "--output", type=file_path, action=_Once, metavar="FILE", help=text)


def add_redact(parser: _Options) -> None:
    text = "replace UUIDs, serials, addresses, paths, names of hosts, users and processes"
    parser.add_argument("--redact", action="store_true", help=text)


def add_formats(parser: _Options, *formats: str, default: str | None = None) -> None:
    """Add `--format` and `--json`. Without `default`, None stands for text, see `take_format_of_file`."""
    endings = ", ".join(ending for ending, of_file in _FORMAT_OF.items() if of_file in formats)
    text = None if default else f"default: that of a FILE that ends with {endings}, else text"
    parser.add_argument("--format", choices=formats, default=default, help=text)
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")
    parser.set_defaults(formats=formats)


def take_format_of_file(args: argparse.Namespace) -> None:
    """Let `-o FILE` without `--format` mean the format that the name ends with, if the command writes that."""
    by_suffix = _FORMAT_OF.get(args.output.suffix.lower()) if getattr(args, "output", None) is not None else None
    if by_suffix in getattr(args, "formats", ()) and args.format is None:
        args.format = by_suffix


def add_color(parser: _Options) -> None:
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def add_node(parser: _Options, text: str) -> None:
    parser.add_argument("--node", metavar="SOURCE", help=text)


def add_fault(parser: _Options, text: str = "put a fault on the node; makes it SIMULATED") -> None:
    """Add `--fault NAME[@GPU]`, which may be repeated."""
    parser.add_argument("--fault", dest="faults", action="append", default=[], metavar="NAME[@GPU]", help=text)


def add_source(parser: argparse.ArgumentParser, without: str = "; without it, this machine") -> None:
    """Add `--node` and `--fault`; `without` is the end of the help of `--node`."""
    add_node(parser, NODE_HELP + without)
    add_fault(parser)


def add_facts_deadline(parser: _Options, text: str = "for reading the facts (60)") -> None:
    parser.add_argument("--deadline", dest="deadline_s", type=seconds, metavar="SECONDS", help=text)


def read_source(args: argparse.Namespace) -> node_check.Sourced:
    """Read what `--node`, `--fault` and `--deadline` describe, with progress on a terminal. Raise UserError."""
    return node_check.read_source(
        args.node,
        args.faults,
        args.deadline_s or COLLECTION.seconds,
        progress=progress.terminal_progress(),
        source_deadline_s=args.deadline_s,
    )


def to_file(args: argparse.Namespace) -> bool:
    """Whether `-o` names a file, other than `-` for stdout."""
    return args.output is not None and str(args.output) != "-"


def terminal_width(default: int = 100) -> int:
    """COLUMNS, else the width of the terminal, also of that behind a pipe (`| less`), else `default`."""
    # not shutil's: it imports every format of archives, which takes longer than judging a node
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    with suppress(OSError, ValueError, AttributeError):  # closed, no terminal, or replaced by a caller of main()
        out = sys.stdout.fileno()
        behind = stat.S_ISFIFO(os.fstat(out).st_mode) and is_terminal(sys.stderr)
        return os.get_terminal_size(sys.stderr.fileno() if behind else out).columns or default
    return default


def output_color(asked: str, *, to_file: bool) -> bool:
    """Whether to use colour: by --color, then NO_COLOR and FORCE_COLOR, then on terminals; in files by --color only."""
    if asked != "auto":
        return asked == "always"
    if to_file or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"


def write_output(text: str, args: argparse.Namespace) -> None:
    """Write atomically to the file that `-o` names, else to stdout. Raise UserError."""
    if to_file(args):
        output_files.write_file(args.output, text)
    else:
        _print(text, args)


def write_error_document(text: str, args: argparse.Namespace) -> None:
    """Write a document with an error as `write_output` does; to stdout if that file cannot be written."""
    try:
        write_output(text, args)
    except output_files.OutputError:
        _print(text, args)


def write_error_object(args: argparse.Namespace, message: str, code: int) -> int:
    """Write an error as a JSON object if `--json` was given; return the exit code. For commands without a document."""
    if args.json:
        write_stdout(msgspec.json.encode({"error": printable(message)}).decode() + "\n")
    return code


def write_as_asked(report: _D, args: argparse.Namespace, render: Callable[[_D, bool], str]) -> bool:
    """Write to the file that `-o` names, else to stdout; return whether it was written where requested.

    If the file cannot be written, the report goes to stdout with exit code 2 in it. `render(report, to_file)` returns
    its text. If the report has an error, that was printed on stderr before, and nothing is added to it.
    """
    as_asked = True
    try:
        if to_file(args):
            try:
                output_files.write_file(args.output, render(report, True))
                return True
            except output_files.OutputError as error:
                as_asked = False
                _say_unless_told(report, f"{error}; the report goes to stdout instead")
                report = msgspec.structs.replace(report, exit_code=COULD_NOT)  # type: ignore[type-var]
        _print(render(report, False), args)
    except ClosedStdoutError as error:
        as_asked = False
        _say_unless_told(report, str(error))
    return as_asked


def _print(text: str, args: argparse.Namespace) -> None:
    """Write to stdout: text in the encoding of the locale, documents in UTF-8, which JSON, XML and HTML must be."""
    is_text = getattr(args, "format", "json") in (None, "text")  # a command without --format writes JSON
    write_stdout(text if is_text else text.encode("utf-8", "backslashreplace"))


def _say_unless_told(report: _Document, what: str) -> None:
    if report.error is None:
        say(f"error: {what}")


def seconds(text: str) -> float:
    """Parse a time limit in seconds."""
    return _number(text, lambda value: 0 < value < 86400, "a number of seconds above 0 and below 86400")


def seconds_between(least: float, most: float) -> Callable[[str], float]:
    """A parser of seconds within a range, both ends included."""
    expected = f"a number of seconds from {least:g} to {most:g}"
    return lambda text: _number(text, lambda value: least <= value <= most, expected)


def rate(text: str) -> float:
    """Parse a rate in Gbit/s."""
    return _number(text, lambda value: 0 < value < 1e6, "a rate in Gbit/s, above 0,")


def up_to(largest: int, kind: str = "a number") -> Callable[[str], int]:
    """A parser of whole numbers from 1 to `largest`; `kind` starts the error message."""

    def whole_number(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= largest:
            raise argparse.ArgumentTypeError(f"{text!r}: {kind} from 1 to {largest} is wanted")
        return int(text)

    return whole_number


def _number(text: str, fits: Callable[[float], bool], expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not fits(value):  # NaN never fits
        raise argparse.ArgumentTypeError(f"{text!r}: {expected} is wanted")
    return value
