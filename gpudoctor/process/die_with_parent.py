"""Processes that do not outlive the process that starts them, however that one ends.

Such a process first asks the kernel for a signal when its parent dies, because later imports may take long or hang.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from gpudoctor.process.ending import leave
from gpudoctor.process.own_program import own_python

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36


def dependent_python(
    module: str, function: str, *arguments: str, sent: int = signal.SIGKILL, python: str | None = None
) -> list[str]:
    """Like `own_python`, but the process gets the signal `sent` when this process dies."""
    options = (str(os.getpid()), str(int(sent)), module, function, *arguments)
    return own_python(__name__, "begin", *options, python=python)


def dependent_program(argv: Sequence[str]) -> list[str]:
    """The command line of a program that gets SIGTERM when this process dies."""
    return dependent_python(__name__, "be_program", *argv, sent=signal.SIGTERM)


def dependent_gpudoctor(argv: Sequence[str], python: str | None = None) -> list[str]:
    """The same for `gpudoctor` with these arguments, in this Python; `python`: as for `own_python`."""
    return dependent_python(__name__, "be_gpudoctor", *argv, sent=signal.SIGTERM, python=python)


def begin(parent: str, sent: str, module: str, function: str, *arguments: str) -> None:
    """In the child: call the function with these arguments, which also replace those in sys.argv."""
    die_with_parent(int(parent), int(sent))
    sys.argv[1:] = arguments
    getattr(import_module(module), function)(*arguments)


def be_program(*argv: str) -> None:
    """In the child: run the program; never returns. Raise OSError if there is no such program."""
    os.execvp(argv[0], argv)


def be_gpudoctor(*argv: str) -> None:
    """In the child: run gpudoctor and end the process."""
    sys.argv = ["gpudoctor", *argv]
    sys.exit(import_module("gpudoctor.__main__").run())


def die_with_parent(parent: int | None = None, sent: int = signal.SIGKILL) -> None:
    """Have the kernel send `sent` to this process when its parent ends; end it now if `parent` is not its parent."""
    _prctl(_PR_SET_PDEATHSIG, int(sent))
    if parent is not None and os.getppid() != parent:
        leave(1)


def adopt_orphans() -> bool:
    """Become the parent of orphaned descendants (a subreaper); False if the system does not allow it."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> bool:
    import ctypes  # here: not needed by processes that only start others

    try:
        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):  # not Linux
        return False
