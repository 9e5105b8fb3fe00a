"""`python -m gpudoctor`, and the command `gpudoctor`."""

import sys

from gpudoctor.process.own_program import forget_working_directory


def run() -> int:
    """Run the command line; give its exit code."""
    forget_working_directory()
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C while modules load: no report yet, and no traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpudoctor.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
