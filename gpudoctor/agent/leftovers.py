"""Processes that a run left behind: they come to the agent when their parent ends, and are ended and counted."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def adopt_orphans() -> bool:
    """Become the parent of whatever a run leaves behind; False where the system does not allow it.

    A process that is stuck in the driver cannot be killed, and each run would add one.
    """
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def end_leftovers() -> tuple[int, ...]:
    """Kill and reap every child that there is, and give those that have not ended (yet).

    To be called only while no process that the agent itself waits for runs.
    """
    children = _children()
    for pid in children:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return tuple(pid for pid in _children() if pid in children)


def _children() -> tuple[int, ...]:
    found = []
    try:
        for task in Path("/proc/self/task").iterdir():
            found += [int(pid) for pid in (task / "children").read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return ()
    return tuple(found)
