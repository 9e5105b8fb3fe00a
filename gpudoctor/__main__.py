"""`python -m gpudoctor`, and the command `gpudoctor`."""

import os
import sys

from gpudoctor.process.own_program import forget_working_directory


def run() -> int:
    """Run the command line; give its exit code."""
    forget_working_directory()
    _hold_standard_streams()
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C while modules load: no report yet, and no traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpudoctor.cli import main

    return main()


def _hold_standard_streams() -> None:
    """Put /dev/null in the place of a standard stream that the caller closed.

    Else the next file that is opened has its number, and gets what a library prints. It is open for reading only, so
    that writing fails as before; programs that we start get what the caller gave.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            try:
                os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
            except OSError:
                return


if __name__ == "__main__":
    sys.exit(run())
