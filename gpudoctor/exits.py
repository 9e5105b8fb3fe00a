"""Exit codes, signals, and what is written to stdout and stderr. stdout holds the report and nothing else."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from gpudoctor.errors import UserError
from gpudoctor.process.ending import ENDING_SIGNALS
from gpudoctor.process.pipes import write_all

OK = 0  # no failure
FAILED = 1  # at least one fail
COULD_NOT = 2  # gpudoctor could not do its work
UNKNOWN = 3  # no failure, but something is unknown


class InterruptedBySignal(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived; `exit_code` is 128 + its number, as in the shell."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number


class WritingAbandoned(InterruptedBySignal):
    """A second signal arrived a while after the first: the report could not be written in time."""


# people press Ctrl-C more than once; service managers send SIGTERM and SIGHUP together
_PATIENCE_S = 2.0
_ignored: set[int] = set()
_ignored_at_start: tuple[int, ...] = ()


def catch_signals() -> None:
    """Turn SIGINT, SIGTERM and SIGHUP into InterruptedBySignal in the main thread; SIGHUP stays ignored under nohup.

    The first signal unwinds the stack, so that ranks are ended and a partial report is made; further ones are ignored
    meanwhile, so that no process is left behind.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        _overhear_all()
        raise InterruptedBySignal(number)

    global _ignored_at_start
    _ignored_at_start = tuple(n for n in ENDING_SIGNALS if signal.getsignal(n) is signal.SIG_IGN)
    _ignored.clear()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        _ignored.add(signal.SIGHUP)
    for number in ENDING_SIGNALS:
        if number not in _ignored:
            signal.signal(number, handle)
    # a parent that blocked them passed its mask on: only SIGKILL would end this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    # also inherited: with SIG_IGN the kernel keeps no exit status, and every child would seem to have succeeded
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def ignored_at_start() -> tuple[int, ...]:
    """The ending signals that our caller ignores, as `nohup` and `&` in a script do: a command inherits that."""
    return _ignored_at_start


def _overhear_all() -> None:
    # not SIG_IGN: Python prints an error if a signal arrived just before
    for number in ENDING_SIGNALS:
        signal.signal(number, _overhear)


def _ignore_signals() -> None:
    _overhear_all()
    # block them first: Python prints an error if a signal arrived just before SIG_IGN
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _overhear(number: int, frame: FrameType | None) -> None:
    """Ignore a signal after the first."""


def hold_signals(came: InterruptedBySignal | None = None) -> list[int]:
    """Record the first signal in the returned list instead of raising it, so that the report is written whole.

    `came` is a first signal that has arrived already. Further ones are ignored for 2 s; after that one raises
    WritingAbandoned, since stdout may be a pipe without a reader. If the process is still alive 2 s later, the next
    one ends it at once.
    """
    noted = [] if came is None else [came.number]
    last_s = time.monotonic()
    abandoned = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal last_s, abandoned
        if not noted:
            noted.append(number)
            last_s = time.monotonic()
        elif time.monotonic() - last_s < _PATIENCE_S:
            return
        elif abandoned:
            os._exit(128 + number)
        else:
            abandoned, last_s = True, time.monotonic()
            raise WritingAbandoned(number)

    for number in ENDING_SIGNALS:
        if number not in _ignored:
            signal.signal(number, note)
    return noted


def say(message: str) -> None:
    """Write one line to stderr; a closed stderr is not an error."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"gpudoctor: {printable(message)}\n")
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
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text.replace("\n", " "))


def guarded(command: Callable[[], int], on_error: Callable[[str, int], int]) -> int:
    """Run a command and return its exit code, whatever it raises.

    `on_error(line, exit_code)` is called with the line written to stderr; it writes the error as a document of the
    requested format and returns the exit code of that format.
    """
    code = COULD_NOT
    try:
        code = _guarded(command, on_error)
    except WritingAbandoned as stop:
        _silence_stdout()
        code = stop.exit_code
    finally:
        if code > 128:
            _ignore_signals()
    return code


def _guarded(command: Callable[[], int], on_error: Callable[[str, int], int]) -> int:
    def could_not(message: str, code: int = COULD_NOT) -> int:
        say(f"error: {message}" if code == COULD_NOT else message)
        try:
            return on_error(message, code)
        except Exception:  # already reported on stderr; it must not become the exit code of a verdict
            return code

    try:
        return command()
    except UserError as error:
        return could_not(str(error))
    except WritingAbandoned:
        raise
    except InterruptedBySignal as stop:
        hold_signals(stop)
        code = could_not(f"interrupted by {stop}", stop.exit_code)
        _ignore_signals()  # another one during interpreter exit would change the exit code
        return code
    except Exception as error:  # a bug of ours must not look like a verdict (exit 1) nor print a traceback
        if os.environ.get("GPUDOCTOR_TRACEBACK"):
            raise
        where = _place(error)
        return could_not(
            f"internal error: {type(error).__name__}: {error}{where}; GPUDOCTOR_TRACEBACK=1 shows all of it"
        )


class ClosedStdoutError(UserError):
    """stdout is closed, a broken pipe, or a file on a full disk."""


def write_stdout(text: str | bytes) -> None:
    """Write all of it to stdout and flush. Raise ClosedStdoutError, instead of failing at interpreter exit."""
    try:
        _pour(text)
    except (OSError, ValueError) as error:
        _silence_stdout()
        why = getattr(error, "strerror", None) or error
        raise ClosedStdoutError(f"stdout could not take the output ({why})") from None
    except InterruptedBySignal:
        _silence_stdout()
        raise


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


def _silence_stdout() -> None:
    # buffered output would fail again, with a traceback, at interpreter exit
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
    except OSError:
        pass


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" (at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"  # noqa: PTH119
