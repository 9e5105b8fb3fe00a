"""`python -m acceptance`."""

import signal
import sys


def run() -> int:
    """Run the acceptance; return its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C while modules load: no traceback, nothing has started yet
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from acceptance.options import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
