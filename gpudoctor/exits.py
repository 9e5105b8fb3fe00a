"""The exit codes, and everything printed to stderr. stdout is the report and nothing else."""

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
UNKNOWN = 3  # no failure, but something unknown


class InterruptedBySignal(BaseException):
    """SIGINT, SIGTERM or SIGHUP came; `exit_code` is the shell's 128 + number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number


class WritingAbandoned(InterruptedBySignal):
    """A further signal came, a while after the first one: the report cannot be got rid of, or not in time."""


# people press Ctrl-C more than once, and service managers send SIGTERM and SIGHUP at once
_PATIENCE_S = 2.0
_ignored: set[int] = set()


def catch_signals() -> None:
    """Turn SIGINT, SIGTERM and SIGHUP into InterruptedBySignal in the main thread; nohup's SIGHUP stays ignored.

    The first one unwinds to whoever holds ranks or a half-made report; further ones while that
    goes on are ignored, so that nothing is left behind.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        _overhear_all()
        raise InterruptedBySignal(number)

    _ignored.clear()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        _ignored.add(signal.SIGHUP)
    for number in ENDING_SIGNALS:
        if number not in _ignored:
            signal.signal(number, handle)
    # whoever blocked them for itself handed that down: nothing but SIGKILL would end this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    # the same: the kernel would keep no exit status, and whatever is started here would seem to have ended well
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _overhear_all() -> None:
    # not SIG_IGN: Python complains aloud of a signal that came just before
    for number in ENDING_SIGNALS:
        signal.signal(number, _overhear)


def _ignore_signals() -> None:
    _overhear_all()
    # Python complains aloud of a signal that came just before SIG_IGN: from here on none comes
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _overhear(number: int, frame: FrameType | None) -> None:
    """One signal is enough."""


def hold_signals(came: InterruptedBySignal | None = None) -> list[int]:
    """From here on note the first signal in the list that is given back, so that the report comes out whole.

    `came`: the first one has come already. Further ones are ignored for 2 s; then one raises
    WritingAbandoned, since stdout may be a pipe that nobody reads; where that leads nowhere for
    2 s more, the next ends the process at once.
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
    """One line to stderr; a closed stderr is nobody's error."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"gpudoctor: {printable(message)}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def is_terminal(stream: object) -> bool:
    """Whether people watch it; a stream that is closed, or none, is no terminal."""
    isatty = getattr(stream, "isatty", None)
    try:
        return bool(isatty and isatty())
    except ValueError:
        return False


def printable(text: str) -> str:
    """The text without control characters: names come from strangers and may hold escapes."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text.replace("\n", " "))


def guarded(command: Callable[[], int], on_error: Callable[[str, int], int]) -> int:
    """Run a command and give its exit code, whatever happens in it.

    `on_error` gets the one line that went to stderr and the exit code, makes a document of it in
    the format asked for, and gives the exit code of that format.
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
        except Exception:  # the line on stderr has said it; a verdict's exit code must not come of it
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
        _ignore_signals()  # while Python goes down, one more would change the exit code
        return code
    except Exception as error:  # a defect of ours must not look like a verdict (exit 1) nor print a traceback
        if os.environ.get("GPUDOCTOR_TRACEBACK"):
            raise
        where = _place(error)
        return could_not(
            f"internal error: {type(error).__name__}: {error}{where}; GPUDOCTOR_TRACEBACK=1 shows all of it"
        )


class ClosedStdoutError(UserError):
    """stdout cannot take the output: closed, a broken pipe, or a full disk behind it."""


def write_stdout(text: str | bytes) -> None:
    """Write all of it to stdout; raise ClosedStdoutError instead of failing at interpreter exit."""
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
    except io.UnsupportedOperation:  # in memory, of a caller of main()
        if hasattr(stream, "buffer"):
            stream.buffer.write(text)
        else:
            stream.write(text.decode())
        return
    # not stream.write: with PYTHONUNBUFFERED it takes a part, if a signal comes, and drops the rest
    write_all(descriptor, text)


def _silence_stdout() -> None:
    # what is still buffered would fail again, with a traceback, when the interpreter ends
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
