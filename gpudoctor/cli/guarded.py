"""Runs a command: whatever it raises becomes one line on stderr and an exit code."""

from __future__ import annotations

import os
from collections.abc import Callable

from gpudoctor.errors import UserError
from gpudoctor.process.exit_codes import COULD_NOT
from gpudoctor.process.signals import InterruptedBySignal, WritingAbandoned, hold_signals, ignore_signals
from gpudoctor.text.output import ClosedStdoutError, flush_stderr, say, silence


def guarded(command: Callable[[], int], on_error: Callable[[str, int], int]) -> int:
    """Run a command and return its exit code, whatever it raises.

    `on_error(line, exit_code)` is called with the line written to stderr; it writes the error as a document of the
    requested format and returns the exit code of that format.
    """
    code = COULD_NOT
    try:
        code = _guarded(command, on_error)
    except WritingAbandoned as stop:
        silence(1)
        code = stop.exit_code
    finally:
        if code > 128:
            ignore_signals()
        flush_stderr()
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
        if isinstance(error, ClosedStdoutError) and error.reader_left:
            return COULD_NOT  # no message: whoever ran `| head` wants none
        return could_not(str(error))
    except WritingAbandoned:
        raise
    except InterruptedBySignal as stop:
        hold_signals(stop)
        code = could_not(f"interrupted by {stop}", stop.exit_code)
        ignore_signals()  # another one during interpreter exit would change the exit code
        return code
    except Exception as error:  # a bug of ours must not look like a verdict (exit 1) nor print a traceback
        if os.environ.get("GPUDOCTOR_TRACEBACK"):
            raise
        where = _place(error)
        return could_not(
            f"internal error: {type(error).__name__}: {error}{where}; GPUDOCTOR_TRACEBACK=1 shows all of it"
        )


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" (at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"  # noqa: PTH119
