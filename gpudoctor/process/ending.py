"""Ending processes that were started here, and describing how they ended."""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import NoReturn

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # sent by users and service managers


class RunningProcess(ABC):
    """A process that this one has started. No signal is sent after it was reaped, since its pid may be reused."""

    pid: int

    @property
    @abstractmethod
    def returncode(self) -> int | None:
        """The exit status, -n for signal n, if already known; makes no system call."""

    @abstractmethod
    def ends_within(self, limit_s: float) -> int | None:
        """The exit status, -n for signal n; None if it is still running after the limit."""

    @abstractmethod
    def abandon(self) -> None:
        """Stop waiting for a process that is stuck in the kernel and cannot be killed: it counts as killed."""

    def poll(self) -> int | None:
        """The exit status, or None while it is running."""
        return self.ends_within(0.0)

    def send(self, number: int, *, group: bool = False) -> bool:
        """Send a signal to it, or to the process group that it leads; False if it was reaped."""
        if self.returncode is not None:
            return False
        send_signal(self.pid, number, group=group)
        return True

    def end(self, grace_s: float, *, group: bool = True) -> bool:
        """End it by SIGTERM, then SIGKILL, waiting `grace_s` after each; False if it had to be abandoned."""
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if not self.send(number, group=group) or self.ends_within(grace_s) is not None:
                    return True
        except BaseException:  # a signal handler has raised: the process must not be left running
            self.send(signal.SIGKILL, group=group)
            raise
        self.abandon()
        return False


def kill_all(processes: Sequence[RunningProcess], limit_s: float, *, group: bool = True) -> None:
    """Kill the processes, wait for all of them together, and abandon those that are stuck in the kernel."""
    for process in processes:
        process.send(signal.SIGKILL, group=group)
    give_up_s = monotonic() + limit_s
    for process in processes:
        if process.ends_within(max(0.0, give_up_s - monotonic())) is None:
            process.abandon()


def send_signal(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to a process or a process group; ignore one that has ended or belongs to another user."""
    with suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


def leave(status: int = 0) -> NoReturn:
    """End this process without cleanup: the exit handlers of libraries take time, and may hang or abort."""
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
    """How a process ended, by its `returncode`: "exit code 2", "killed by SIGSEGV"."""
    if status is None:
        return "it did not end"
    return f"exit code {status}" if status >= 0 else f"killed by {signal_name(-status)}"
