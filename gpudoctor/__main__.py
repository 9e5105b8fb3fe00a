"""`python -m gpudoctor`, and the command `gpudoctor`."""

import signal
import sys


def run() -> int:
    """Run the command line; give its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C while modules load: no report yet, and no traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpudoctor.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
