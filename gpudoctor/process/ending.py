"""How a process that was started here is ended without fail, and how an ending is called."""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import NoReturn

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what people and service managers send


class RunningProcess(ABC):
    """A process that this one has started. No signal is sent once it was reaped: its number may be another's."""

    pid: int

    @property
    @abstractmethod
    def returncode(self) -> int | None:
        """The exit status, -n for signal n, as far as it is known; asks nobody."""

    @abstractmethod
    def ends_within(self, limit_s: float) -> int | None:
        """The exit status, -n for signal n; None if it still runs after so long."""

    @abstractmethod
    def abandon(self) -> None:
        """Wait no more for a process that sits in the kernel and cannot be killed: it counts as killed."""

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self.ends_within(0.0)

    def send(self, number: int, *, group: bool = False) -> bool:
        """Send a signal to it, or to the process group that it leads; False if it was reaped."""
        if self.returncode is not None:
            return False
        send_signal(self.pid, number, group=group)
        return True

    def end(self, grace_s: float, *, group: bool = True) -> bool:
        """End it by SIGTERM, or else SIGKILL, and wait for so long after each; False if it had to be abandoned."""
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if not self.send(number, group=group) or self.ends_within(grace_s) is not None:
                    return True
        except BaseException:  # the handler of a signal has raised: nobody waits here again
            self.send(signal.SIGKILL, group=group)
            raise
        self.abandon()
        return False


def kill_all(processes: Sequence[RunningProcess], limit_s: float, *, group: bool = True) -> None:
    """Kill them, then wait for all of them together; what is left then sits in the kernel and is abandoned."""
    for process in processes:
        process.send(signal.SIGKILL, group=group)
    give_up_s = monotonic() + limit_s
    for process in processes:
        if process.ends_within(max(0.0, give_up_s - monotonic())) is None:
            process.abandon()


def send_signal(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to a process or a process group; one that is gone or another user's is left alone."""
    with suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


def leave(status: int = 0) -> NoReturn:
    """End this process without taking anything down: libraries take time for it, and may hang or abort."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    finally:
        os._exit(status)


def signal_name(number: int) -> str:
    """SIGSEGV for 11; "signal 40" if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ending_words(status: int | None) -> str:
    """How a process ended, from its `returncode`: "exit code 2", "killed by SIGSEGV"."""
    if status is None:
        return "it did not end"
    return f"exit code {status}" if status >= 0 else f"killed by {signal_name(-status)}"
