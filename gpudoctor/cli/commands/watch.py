"""`gpudoctor watch`: writes the facts once, then a sample per interval, as JSON lines."""

from __future__ import annotations

import argparse
import io
import select
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from gpudoctor.cli import options
from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import OK
from gpudoctor.text.json_text import terminal_safe

with lazy_imports():
    from gpudoctor.facts.stream import sources

if TYPE_CHECKING:
    from gpudoctor.facts.stream.messages import Opening, Tick


def interval_option(parser: argparse.ArgumentParser) -> None:
    """Add `--interval SECONDS`, for commands that show live values."""
    text = "between samples: 0.2 to 3600 (default 1)"
    parser.add_argument(
        "--interval",
        dest="interval_s",
        type=options.seconds_between(0.2, 3600),
        default=1.0,
        metavar="SECONDS",
        help=text,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_source(parser)
    interval_option(parser)


class ClosedError(Exception):
    """The reader of stdout has gone."""


class LineWriter:
    """Writes lines to stdout unbuffered, so that no line waits in a buffer while the reader is slow."""

    def __init__(self, stream: BinaryIO) -> None:
        self._raw = getattr(stream, "raw", stream)
        self._encode = msgspec.json.Encoder().encode
        self._poll: select.poll | None = None
        try:
            descriptor = self._raw.fileno()
            self._poll = select.poll()
            self._poll.register(descriptor, 0)  # errors only: they mean that the reader has gone
        except (OSError, io.UnsupportedOperation, ValueError):
            self._poll = None

    def write(self, line: Opening | Tick) -> None:
        """Write one line. Raise ClosedError if the reader has gone, UserError if stdout cannot be written."""
        data = memoryview(terminal_safe(self._encode(line)) + b"\n")
        try:
            while data:
                data = data[self._raw.write(data) or 0 :]
        except BrokenPipeError:
            raise ClosedError from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"stdout could not take the line ({why})") from None

    def wait(self, seconds: float) -> None:
        """Sleep. Raise ClosedError as soon as the reader has gone."""
        if self._poll is None:
            time.sleep(seconds)
        elif self._poll.poll(seconds * 1000):
            raise ClosedError


def run(args: argparse.Namespace) -> int:
    """Write lines until the reader has gone or a recording ends; return the exit code."""
    if sys.stdout is None:
        raise UserError("stdout is closed: gpudoctor watch writes its lines there")
    lines = LineWriter(sys.stdout.buffer)
    with ExitStack() as retained:
        source = sources.open_source(args.node, args.faults, args.interval_s)
        retained.callback(source.close)
        with suppress(ClosedError):
            follow(source, lines, args.interval_s)
    return OK


def follow(
    source: sources.StreamSource, lines: LineWriter, interval_s: float, clock: Callable[[], float] = time.time
) -> None:
    """Write the lines of the source, one batch per interval. Raise ClosedError, UserError."""
    due_s = monotonic()
    while True:
        at_s = round(clock(), 3)
        reported = False
        for line in source.lines(at_s):
            lines.write(line)
            reported = True
        if not reported:
            return
        due_s += interval_s
        if due_s < monotonic() - interval_s:
            due_s = monotonic()  # skip missed samples instead of catching up
        lines.wait(max(0.0, due_s - monotonic()))
