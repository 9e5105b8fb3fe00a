"""`python -m gpudoctor.acceptance`."""

import signal
import sys


def run() -> int:
    """Run the acceptance; give its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C while modules load: nothing was begun, and no traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpudoctor.cli.acceptance import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
