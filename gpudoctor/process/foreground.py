"""Runs a command in the place of this process: same terminal, same process group, same descriptors and signals.

Signals that reach the whole group (Ctrl-C, Ctrl-Z, a closed terminal, a batch system that ends a step) reach the
command by themselves. A signal that was sent to this process alone is passed on. A witness, a forked process in the
same group, shows which of both it was.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import sleep
from typing import NoReturn

from gpudoctor.process.ending import ENDING_SIGNALS, kill_all, leave, process_state, send_signal
from gpudoctor.process.forked import ForkedProcess

_PASSED_ON = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
_ENDING = (*ENDING_SIGNALS, signal.SIGQUIT)
_AWAITED = (*_PASSED_ON, signal.SIGCHLD, signal.SIGCONT)
_FROM_KERNEL = 0x80  # si_code of a signal that the terminal sent
_WITNESS_S = 0.15  # until a group's signal has reached all its processes
_GROUP_S = 0.02  # until a signal to the group has reached all of it
_ENDING_GRACE_S = 15.0


class CannotStartError(Exception):
    """The command cannot be run; `exit_code` is what a shell returns: 127 not found, 126 not executable."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class ForegroundCommand:
    """The command, started as if it had been called without us. Raise CannotStartError.

    `ignored` are the signals that were ignored when this process started, as under nohup. While it runs, this process
    must have no other thread that could take the signals, and calls `step` again and again. With `end_with_us` the
    command is ended if this process is killed.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], *, ignored: Sequence[int] = (), end_with_us: bool
    ) -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
        self._witness = _Witness(end_with_us)
        self.signals: list[int] = []
        self.returncode: int | None = None
        self._is_to_end = False
        mask = self._mask - {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        try:
            self.pid = _spawn(argv, env, mask, self._witness)
        except OSError as error:
            self._witness.end()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            code = 127 if isinstance(error, FileNotFoundError) else 126
            raise CannotStartError(error.strerror or str(error), code) from None

    def step(self, limit_s: float) -> int | None:
        """Wait for at most so long, and do what signals require; the exit status, -n for signal n, once it has ended.

        If the command stops, this process stops with it, so that a shell sees what it would see without us. A stopped
        command gets no signal before it goes on: one that is to end goes on, as under timeout(1).
        """
        info = signal.sigtimedwait(_AWAITED, limit_s)
        if info is not None and info.si_signo in _PASSED_ON:
            self.signals.append(info.si_signo)
            if not _reaches_group(info) and not self._witness.saw(info.si_signo):
                send_signal(self.pid, info.si_signo)
            self._is_to_end = info.si_signo in _ENDING
            if self._is_to_end and process_state(self.pid) == "T":
                send_signal(self.pid, signal.SIGCONT)
        self._follow()
        return self.returncode

    def end(self) -> None:
        """End the command: SIGTERM, and after a grace time SIGKILL."""
        send_signal(self.pid, signal.SIGTERM)
        waited_s = 0.0
        while self.step(0.2) is None:
            waited_s += 0.2
            if waited_s > _ENDING_GRACE_S:
                send_signal(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Receive signals as before."""
        self._witness.end()
        while signal.sigtimedwait(_AWAITED, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _follow(self) -> None:
        flags = os.WNOHANG | os.WUNTRACED
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            if pid == 0:
                return
            if os.WIFSTOPPED(status) and self._is_to_end:
                self._is_to_end = False
                send_signal(self.pid, signal.SIGCONT)
            elif os.WIFSTOPPED(status):
                _stop_as(os.WSTOPSIG(status))
                sleep(_GROUP_S)
                if process_state(self.pid) == "T":  # the SIGCONT was sent to us alone
                    send_signal(self.pid, signal.SIGCONT)
            else:
                self.returncode = os.waitstatus_to_exitcode(status)


def end_by_signal(number: int) -> NoReturn:
    """End this process by the signal that ended the command, so that its caller sees the same."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    sleep(1.0)  # until it is delivered
    leave(128 + number)


def _reaches_group(info: signal.struct_siginfo) -> bool:
    """Whether the terminal sent it to the whole group: one that is closed sends it to the session's leader alone."""
    of_terminal = info.si_code == _FROM_KERNEL
    return of_terminal and not (info.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid())


def _spawn(argv: Sequence[str], env: Mapping[str, str], mask: set[signal.Signals | int], witness: _Witness) -> int:
    """Start the command. It names itself to the witness first: we may be killed before we know its pid."""
    failure, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            witness.watch(os.getpid())
            _become(argv, env, mask)
        except OSError as error:
            os.write(report, (error.errno or errno.EIO).to_bytes(4, "little"))
        except ValueError:  # the name is empty, or has a NUL
            os.write(report, errno.ENOENT.to_bytes(4, "little"))
        finally:
            os._exit(127)
    os.close(report)
    with os.fdopen(failure, "rb") as reported:
        number = int.from_bytes(reported.read(), "little")
    if number:
        os.waitpid(pid, 0)
        raise OSError(number, os.strerror(number))
    return pid


def _become(argv: Sequence[str], env: Mapping[str, str], mask: set[signal.Signals | int]) -> NoReturn:
    # Python ignores the first two; a command has them as they are by default
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *_AWAITED):
        if number not in _AWAITED or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvpe(argv[0], list(argv), dict(env))
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # a script without #!: what shells and env do
        os.execve("/bin/sh", ["/bin/sh", *argv], dict(env))


def _stop_as(number: int) -> None:
    """Stop this process as the command was stopped, until it is continued."""
    stop = number if number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU) else signal.SIGSTOP
    if stop != signal.SIGSTOP:
        signal.signal(stop, signal.SIG_DFL)
        # that of the terminal may still be pending: together with our own it would stop us twice
        signal.pthread_sigmask(signal.SIG_BLOCK, [stop])
        os.kill(os.getpid(), stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [stop])
    else:
        os.kill(os.getpid(), stop)
    if stop in _AWAITED:
        signal.pthread_sigmask(signal.SIG_BLOCK, [stop])


class _Witness:
    """A forked process in our group that reports each signal which it receives too."""

    def __init__(self, end_with_us: bool) -> None:
        self._end_with_us = end_with_us
        self._seen: list[int] = []
        self._from_witness, report = os.pipe()
        commands, self._to_witness = os.pipe()

        def run() -> None:
            os.close(self._from_witness)
            os.close(self._to_witness)
            self._report(report, commands)

        self._process = ForkedProcess(run)
        os.close(report)
        os.close(commands)

    def watch(self, pid: int) -> None:
        os.write(self._to_witness, pid.to_bytes(8, "little"))

    def saw(self, number: int) -> bool:
        """Whether the witness received this signal too."""
        while True:
            if number in self._seen:
                self._seen.remove(number)
                return True
            if not select.select([self._from_witness], [], [], _WITNESS_S)[0]:
                return False
            data = os.read(self._from_witness, 64)
            if not data:
                return False
            self._seen += data

    def end(self) -> None:
        kill_all([self._process], 1.0, group=False)  # it only notes other signals
        os.close(self._from_witness)
        os.close(self._to_witness)

    def _report(self, report: int, commands: int) -> None:
        for number in _PASSED_ON:
            signal.signal(number, lambda got, _: os.write(report, bytes([got])) and None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        pid = int.from_bytes(os.read(commands, 8), "little")
        os.read(commands, 1)  # returns when our parent is gone
        if self._end_with_us and pid:
            send_signal(pid, signal.SIGTERM)
            for _ in range(int(_ENDING_GRACE_S / 0.2)):
                sleep(0.2)
                if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
                    return
            send_signal(pid, signal.SIGKILL)
