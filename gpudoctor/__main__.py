"""`python -m gpudoctor`, and the command `gpudoctor`."""

import gc
import os
import sys

from gpudoctor.process.own_program import forget_working_directory

_LIVE = (["check"], ["facts"], ["bundle"])


def run() -> int:
    """Run the command line; give its exit code, with which the process is to end."""
    forget_working_directory()
    _hold_standard_streams()
    # most of what a short run makes are modules, and they stay: looking through them for garbage frees nothing
    gc.set_threshold(50_000, 20, 20)
    try:
        return _run()
    finally:
        gc.freeze()  # nor at the end


def _run() -> int:
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C while modules load: no report yet, and no traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] != ["--version"]:
        _import_msgspec()
    if not _may_read_this_machine(sys.argv[1:]):
        from gpudoctor.cli.main import main

        return main()
    from gpudoctor.facts.nvml.collector_ahead import dismiss_ahead, start_ahead

    start_ahead()
    try:
        from gpudoctor.cli.main import main

        return main()
    finally:
        dismiss_ahead()


def _import_msgspec() -> None:
    """Without typing_extensions: importing that takes as long again, and `typing` has what msgspec looks for in it."""
    if sys.version_info < (3, 11) or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # as if it were not installed
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


def _may_read_this_machine(words: list[str]) -> bool:
    """Whether a driver is to be asked, as far as that shows before the options are understood.

    It only has a process made ready: that is ended, and has not touched the driver, where this turns out to be wrong.
    """
    other = ("-h", "--help", "--node", "--version")
    return words[:1] in _LIVE and not any(word.partition("=")[0] in other for word in words)


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
