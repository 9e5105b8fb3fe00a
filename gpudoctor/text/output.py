"""What is written to stdout and stderr. stdout holds the report and nothing else."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

from gpudoctor.errors import UserError
from gpudoctor.process.pipes import write_all
from gpudoctor.process.signals import InterruptedBySignal


class ClosedStdoutError(UserError):
    """stdout is closed, a broken pipe, or a file on a full disk. `reader_left`: as `head` does when it has enough."""

    def __init__(self, message: str, *, reader_left: bool = False) -> None:
        super().__init__(message)
        self.reader_left = reader_left


def say(message: str) -> None:
    """Write one line to stderr."""
    write_stderr(f"gpudoctor: {printable(message)}\n")


def rewrite_line(text: str) -> None:
    """Show progress in place of the line that a terminal on stderr shows; "" clears that line."""
    write_stderr(f"\r\x1b[2K{printable(text)[:76]}")


def write_stderr(text: str) -> None:
    """Write to stderr and flush; a closed stderr is not an error."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def is_terminal(stream: object) -> bool:
    """Whether the stream is a terminal; a closed stream or None is not."""
    isatty = getattr(stream, "isatty", None)
    try:
        return bool(isatty and isatty())
    except ValueError:
        return False


def printable(text: str) -> str:
    """The text with control characters escaped: names from captures and drivers may hold terminal sequences."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text.replace("\n", " "))


def write_stdout(text: str | bytes) -> None:
    """Write all of it to stdout and flush. Raise ClosedStdoutError, instead of failing at interpreter exit."""
    try:
        _pour(text)
    except (OSError, ValueError) as error:
        silence(1)
        why = getattr(error, "strerror", None) or error
        left = isinstance(error, BrokenPipeError)
        raise ClosedStdoutError(f"stdout could not take the output ({why})", reader_left=left) from None
    except InterruptedBySignal:
        silence(1)
        raise


def flush_stderr() -> None:
    """Flush, and drop what stderr does not take: the interpreter would flush it again, and exit with 120."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        silence(2)


def silence(descriptor: int) -> None:
    """Let /dev/null take what is still buffered for stdout (1) or stderr (2)."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _pour(text: str | bytes) -> None:
    stream = sys.stdout
    if stream is None:
        raise OSError("stdout is closed")
    if isinstance(text, str):
        text = text.encode(stream.encoding or "utf-8", "backslashreplace")
    stream.flush()
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:  # a caller of main() replaced it by a stream in memory
        if hasattr(stream, "buffer"):
            stream.buffer.write(text)
        else:
            stream.write(text.decode())
        return
    # not stream.write: with PYTHONUNBUFFERED a signal makes it write a part and drop the rest
    write_all(descriptor, text)
