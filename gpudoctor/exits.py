"""The exit codes, and everything printed to stderr. stdout is the report and nothing else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from gpudoctor.errors import UserError

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


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def catch_signals() -> None:
    """Turn SIGINT, SIGTERM and SIGHUP into InterruptedBySignal in the main thread.

    The first one unwinds to whoever holds ranks or a half-made report; further ones while that
    goes on are ignored, so that nothing is left behind.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        for ending in _ENDING:
            signal.signal(ending, signal.SIG_IGN)
        raise InterruptedBySignal(number)

    for number in _ENDING:
        signal.signal(number, handle)


def hold_signals() -> list[int]:
    """From here on note the first signal in the list that is given back, so that the report comes out whole.

    A second one ends the process at once, since stdout may be a pipe that nobody reads.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        for ending in _ENDING:
            signal.signal(ending, signal.SIG_DFL)

    for number in _ENDING:
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


def printable(text: str) -> str:
    """The text without control characters: names come from strangers and may hold escapes."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text.replace("\n", " "))


def guarded(command: Callable[[], int], on_error: Callable[[str, int], int]) -> int:
    """Run a command and give its exit code, whatever happens in it.

    `on_error` gets the one line that went to stderr and the exit code, makes a document of it in
    the format asked for, and gives the exit code of that format.
    """

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
    except InterruptedBySignal as stop:
        return could_not(f"interrupted by {stop}", stop.exit_code)
    except Exception as error:  # a defect of ours must not look like a verdict (exit 1) nor print a traceback
        if os.environ.get("GPUDOCTOR_TRACEBACK"):
            raise
        where = _place(error)
        return could_not(
            f"internal error: {type(error).__name__}: {error}{where}; GPUDOCTOR_TRACEBACK=1 shows all of it"
        )


class ClosedStdoutError(UserError):
    """stdout cannot take the report: closed, a broken pipe, or a full disk behind it."""


def write_stdout(text: str) -> None:
    """Write to stdout and flush; raise ClosedStdoutError instead of failing at interpreter exit."""
    try:
        if sys.stdout is None:
            raise OSError("stdout is closed")
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        _silence_stdout()
        why = getattr(error, "strerror", None) or error
        raise ClosedStdoutError(f"stdout could not take the report ({why}); -o FILE writes it to a file") from None


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
