"""A process that undoes the changes of the acceptance run, however the run ends: it starts when its pipe closes.

It runs in a separate session and ignores the ending signals, so that Ctrl-C, a closed terminal and
SIGKILL of the run leave no locked clock, process or file behind.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

import msgspec

from gpudoctor.acceptance.children import MARK
from gpudoctor.errors import UserError
from gpudoctor.facts.system.command import run_command
from gpudoctor.process.command import Completed
from gpudoctor.process.ending import ENDING_SIGNALS
from gpudoctor.process.leftovers import end_marked
from gpudoctor.process.own_program import own_python
from gpudoctor.process.pipes import Bounded, LineReader, pipe_with_child, read_to_end, write_all
from gpudoctor.process.spawn import PIPE, Child

_READY = b"ready"
_START_S = 60.0
_COMMAND_DEADLINE_S = 30.0
_TRIES = 3
_SLACK_S = 20.0
_CLEARING_S = 5.0
_SAID_BYTES = 1 << 20


class UndoOrder(msgspec.Struct, frozen=True):
    """What to undo when `pipe` closes: run `commands` last first, end processes with `mark`, remove `folder`."""

    pipe: int
    commands: tuple[tuple[str, ...], ...] = ()
    mark: str | None = None
    folder: str | None = None


class Guardian:
    """The process; `close` makes it undo now. Raise UserError if it cannot be started."""

    def __init__(
        self, commands: Sequence[Sequence[str]] = (), mark: str | None = None, folder: Path | None = None
    ) -> None:
        self._commands = tuple(tuple(command) for command in commands)
        try:
            with pipe_with_child("reads") as (self._life, watched):
                order = UndoOrder(watched, self._commands, mark, str(folder) if folder else None)
                self._process = Child(
                    own_python("gpudoctor.acceptance.guardian", "main", msgspec.json.encode(order).decode()),
                    stdout=PIPE,
                    pass_fds=(watched,),
                    cwd=Path("/"),
                )
        except OSError as error:
            raise UserError(f"the process that would undo it cannot be started: {error.strerror or error}") from None
        if LineReader(self._process.stdout).one(_START_S) != _READY:
            self.close()
            raise UserError("the process that would undo it did not start")

    def close(self) -> tuple[str, ...]:
        """Make it undo everything; return the commands that failed, with their output, to be repeated by hand."""
        os.close(self._life)
        wait_s = _COMMAND_DEADLINE_S * _TRIES * len(self._commands) + _SLACK_S
        give_up_s = monotonic() + wait_s
        said = Bounded(_SAID_BYTES)
        over = read_to_end({self._process.stdout: said.take}, give_up_s)
        if not over or self._process.ends_within(max(0.0, give_up_s - monotonic())) is None:
            return tuple(" ".join(command) for command in self._commands)
        self._process.close()
        lines = tuple(said.decode("utf-8", "replace").splitlines())
        if self._process.returncode == 0:
            return lines
        return lines or tuple(" ".join(command) for command in self._commands) or ("the guardian process died",)


def main(argument: str) -> None:
    """Wait until the pipe closes, then undo; write a line to stdout for each command that failed."""
    order = msgspec.json.decode(argument, type=UndoOrder)
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    write_all(1, _READY + b"\n")
    os.read(order.pipe, 1)  # nothing is ever written: returns when the run closes it or dies
    if order.mark:
        end_marked(MARK, order.mark, _CLEARING_S)
    failed = [line for command in reversed(order.commands) if (line := _undone(command))]
    if order.folder:
        shutil.rmtree(order.folder, ignore_errors=True)
    with suppress(OSError):  # the run may be dead
        write_all(1, "".join(f"{line}\n" for line in failed).encode())


def _undone(command: tuple[str, ...]) -> str:
    """Run the command, with retries; "" if it worked, else the command and the reason."""
    why = ""
    for _ in range(_TRIES):
        done = run_command(command, _COMMAND_DEADLINE_S)
        if isinstance(done, Completed) and done.returncode == 0:
            return ""
        why = done.stdout.strip().partition("\n")[0] if isinstance(done, Completed) else done.reason
    return f"{' '.join(command)}: {why}"
