"""`python -m gpudoctor`, and the command `gpudoctor`."""

import atexit
import gc
import os
import sys
from contextlib import suppress

from gpudoctor.process.own_program import forget_working_directory

_LIVE = (["check"], ["status"], ["facts"], ["bundle"])


def run() -> int:
    """Run the command line and return the exit code of the process."""
    forget_working_directory()
    _hold_standard_streams()
    # a short run allocates mostly modules, which stay alive: collecting among them frees nothing
    gc.set_threshold(50_000, 20, 20)
    try:
        return _run()
    finally:
        gc.freeze()  # the same at interpreter exit


def _run() -> int:
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C while modules load ends the process without a traceback; there is no report to write yet
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] != ["--version"]:
        _import_msgspec()
    if not _may_read_this_machine(sys.argv[1:]):
        from gpudoctor.cli.main import main

        return main()
    from gpudoctor.facts.nvml.collector_ahead import dismiss_ahead, start_ahead
    from gpudoctor.process.ending import leave

    start_ahead()
    try:
        from gpudoctor.cli.main import main

        code = main()
    finally:
        dismiss_ahead()
    atexit._run_exitfuncs()  # of plugins, and of tools such as coverage; we have none
    with suppress(OSError, ValueError):  # our output is written: this is theirs
        if sys.stdout is not None:
            sys.stdout.flush()
    return leave(code)  # to take all modules down would cost a twentieth of the run


def _import_msgspec() -> None:
    """Import msgspec without typing_extensions: that takes longer to import than all of msgspec (13 ms).

    `typing` of Python 3.11 and newer has all that msgspec looks up in it.
    """
    if sys.version_info < (3, 11) or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


def _may_read_this_machine(parts: list[str]) -> bool:
    """Guess from the raw arguments, before the options are parsed, whether the driver will be read.

    A wrong guess is harmless: the process that was started ahead is ended before it touches the driver.
    """
    other = ("-h", "--help", "--node", "--version")
    return parts[:1] in _LIVE and not any(word.partition("=")[0] in other for word in parts)


def _hold_standard_streams() -> None:
    """Open /dev/null in place of each standard stream that the caller closed.

    Otherwise the next file opened would get that descriptor, and with it whatever a library prints. It is opened for
    reading only, so that writing still fails; programs that we start get the streams of the caller.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            try:
                os.open(os.devnull, os.O_RDONLY)  # takes the lowest free descriptor
            except OSError:
                return


if __name__ == "__main__":
    sys.exit(run())
