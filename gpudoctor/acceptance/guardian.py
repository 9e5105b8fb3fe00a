"""A process that undoes what the acceptance run has done, however that ends: its pipe closes, and it begins.

It runs in a session of its own and ignores what ends others, so that Ctrl-C, a closed terminal and
SIGKILL of the run leave neither a locked clock nor a process nor a file behind.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import msgspec

from gpudoctor.acceptance.children import marked_processes
from gpudoctor.errors import UserError
from gpudoctor.facts.system.command import run_command
from gpudoctor.process.command import Completed
from gpudoctor.process.own_program import own_python

_READY = b"ready\n"
_START_S = 60.0
_COMMAND_DEADLINE_S = 30.0
_TRIES = 3
_SLACK_S = 20.0
_CLEARING_S = 5.0


class Order(msgspec.Struct, frozen=True):
    """What is to be undone: commands, processes that carry `mark`, and a folder."""

    pipe: int
    commands: tuple[tuple[str, ...], ...] = ()
    mark: str | None = None
    folder: str | None = None


class Guardian:
    """The process; `close` has it undo now and gives what it could not. Raise UserError where it cannot be started."""

    def __init__(
        self, commands: Sequence[Sequence[str]] = (), mark: str | None = None, folder: Path | None = None
    ) -> None:
        self._commands = tuple(tuple(command) for command in commands)
        watched, self._life = os.pipe()
        order = Order(watched, self._commands, mark, str(folder) if folder else None)
        try:
            self._process = subprocess.Popen(
                own_python("gpudoctor.acceptance.guardian", "main", msgspec.json.encode(order).decode()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(watched,),
                env=dict(os.environ),  # without the mark: it must not end itself
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._life)
            raise UserError(f"the process that would undo it cannot be started: {error.strerror or error}") from None
        finally:
            os.close(watched)
        assert self._process.stdout is not None
        began = select.select([self._process.stdout], [], [], _START_S)[0]
        if not began or self._process.stdout.readline() != _READY:
            self.close()
            raise UserError("the process that would undo it did not start")

    def close(self) -> tuple[str, ...]:
        """Have it undo all; the commands that failed, with their words, for a person to repeat."""
        os.close(self._life)
        wait_s = _COMMAND_DEADLINE_S * _TRIES * len(self._commands) + _SLACK_S
        try:
            said, _ = self._process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            return tuple(" ".join(command) for command in self._commands)
        lines = tuple(said.decode("utf-8", "replace").splitlines())
        if self._process.returncode == 0:
            return lines
        return lines or tuple(" ".join(command) for command in self._commands) or ("the guardian process died",)


def main(argument: str) -> None:
    """Wait for the end of the pipe, then undo; a line on stdout for each command that failed."""
    order = msgspec.json.decode(argument, type=Order)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, _READY)
    os.read(order.pipe, 1)  # nobody writes: it returns when the run has closed it, or is gone
    if order.mark:
        _clear(order.mark)
    failed = [line for command in reversed(order.commands) if (line := _undone(command))]
    if order.folder:
        shutil.rmtree(order.folder, ignore_errors=True)
    with suppress(OSError):  # nobody may be left to read it
        os.write(1, "".join(f"{line}\n" for line in failed).encode())


def _undone(command: tuple[str, ...]) -> str:
    """Run the command, again if it fails; "" where it worked, else the command and why not."""
    why = ""
    for _ in range(_TRIES):
        done = run_command(command, _COMMAND_DEADLINE_S)
        if isinstance(done, Completed) and done.returncode == 0:
            return ""
        why = done.stdout.strip().partition("\n")[0] if isinstance(done, Completed) else done.reason
    return f"{' '.join(command)}: {why}"


def _clear(mark: str) -> None:
    """End what carries the mark: first politely, then by SIGKILL until nothing is left or it will not die."""
    began, number = monotonic(), signal.SIGTERM
    while (left := marked_processes(mark)) and monotonic() - began < _CLEARING_S:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        sleep(0.2)
        number = signal.SIGKILL if monotonic() - began > 1.0 else signal.SIGTERM
