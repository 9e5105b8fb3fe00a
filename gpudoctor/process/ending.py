"""Ending processes that were started here or left behind by others, and describing how they ended."""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
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


def reap(pid: int = -1) -> tuple[int, int] | None:
    """The pid and exit status of a child that has ended, or of any child; None if it is still running. Never waits.

    The status is 0 if it is no longer our child, as when this process was started with SIGCHLD ignored.
    """
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None if pid == -1 else (pid, 0)
    return (ended, os.waitstatus_to_exitcode(status)) if ended else None


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


def process_state(pid: int) -> str:
    """The letter of a process's state (proc(5), third field of stat); empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2][:1]
    except OSError:
        return ""


def end_leftovers(spare: Collection[int] = ()) -> tuple[int, ...]:
    """Kill and reap all children except those to `spare`; return those that have not ended (yet).

    Call it after `adopt_orphans`, and only while this process waits for no child. A process that is
    stuck in the driver cannot be killed, and each run would add one.
    """
    children = [pid for pid in _children() if pid not in spare]
    send_signals(children, signal.SIGKILL)
    while reap() is not None:
        pass
    return tuple(pid for pid in _children() if pid in children)


def send_signals(pids: Iterable[int], number: int) -> None:
    """Send a signal to all of them; ignore those that have ended."""
    for pid in pids:
        send_signal(pid, number)


def _children() -> tuple[int, ...]:
    found = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
                found += [int(pid) for pid in file.read().split()]
    except (OSError, ValueError):
        return ()
    return tuple(found)
