"""Finds and ends processes that other processes have left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from gpudoctor.process.ending import send_signal
from gpudoctor.process.forked import reap

_OBEY_S = 1.0
_PAUSE_S = 0.2


def end_leftovers() -> tuple[int, ...]:
    """Kill and reap all children; return those that have not ended (yet).

    Call it after `adopt_orphans`, and only while this process waits for no child. A process that is
    stuck in the driver cannot be killed, and each run would add one.
    """
    children = _children()
    send_signals(children, signal.SIGKILL)
    while reap() is not None:
        pass
    return tuple(pid for pid in _children() if pid in children)


def marked_processes(variable: str, value: str) -> dict[int, str]:
    """The processes of this machine that were started with this environment variable: pid -> name."""
    found: dict[int, str] = {}
    wanted = f"{variable}={value}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # it has ended, or belongs to another user
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return found


def end_marked(variable: str, value: str, limit_s: float) -> None:
    """End all `marked_processes`: first by SIGTERM, then by SIGKILL, until none is left or the limit is reached."""
    began_s = monotonic()
    number = signal.SIGTERM
    while (left := marked_processes(variable, value)) and monotonic() - began_s < limit_s:
        send_signals(left, number)
        sleep(_PAUSE_S)
        number = signal.SIGKILL if monotonic() - began_s > _OBEY_S else signal.SIGTERM


def send_signals(pids: Iterable[int], number: int) -> None:
    """Send a signal to all of them; ignore those that have ended."""
    for pid in pids:
        send_signal(pid, number)


def _children() -> tuple[int, ...]:
    found = []
    try:
        for task in Path("/proc/self/task").iterdir():
            found += [int(pid) for pid in (task / "children").read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return ()
    return tuple(found)
