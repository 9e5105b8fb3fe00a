"""Starts, reads and ends the child processes of the acceptance run; each has the run's mark in its environment.

One of them, the guardian, undoes the changes of the run however it ends: it starts when its pipe closes. It runs in a
separate session and ignores the ending signals, so that Ctrl-C, a closed terminal and SIGKILL of the run leave no
locked clock, process or file behind.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.facts.system.sysfs import run_command
from gpudoctor.process.command import Completed
from gpudoctor.process.ending import ENDING_SIGNALS, ending_words, send_signals
from gpudoctor.process.own_program import own_python
from gpudoctor.process.pipes import TURN_S, Bounded, LineReader, pipe_with_child, read_to_end, write_all
from gpudoctor.process.spawn import PIPE, Child

MARK = "GPUDOCTOR_ACCEPTANCE"
_OBEY_S = 5.0  # a check that receives SIGTERM still writes its report and ends its ranks
_MAX_BYTES = 64 << 20
_KEPT_LINES = 40

OnLine = Callable[[str], "signal.Signals | None"]


class EndedChild(msgspec.Struct, frozen=True):
    """A child that ended, or was ended at its deadline (`late`). `code`: as Popen's; `said`: its last stderr lines."""

    code: int | None
    stdout: bytes
    said: tuple[str, ...]
    seconds: float
    late: bool

    @property
    def words(self) -> str:
        """How it ended, with its last line on stderr."""
        how = f"did not end in {self.seconds:.0f} s" if self.late else ending_words(self.code)
        return f"{how}: {self.said[-1][:200]}" if self.said else how


def environment(mark: str, folder: Path) -> dict[str, str]:
    """The environment of the run's children: with its mark and a private TMPDIR."""
    return {**os.environ, MARK: mark, "TMPDIR": str(folder)}


def run_child(
    argv: Sequence[str], *, deadline_s: float, environ: Mapping[str, str], cwd: Path, on_line: OnLine | None = None
) -> EndedChild:
    """Run a program until it ends; end its process group at the deadline and on any exception. Raise OSError.

    `on_line` is called with each line of stderr as it arrives; a signal that it returns is sent to the program.
    """
    started = monotonic()
    process = Child(argv, stdout=PIPE, stderr=PIPE, env=environ, cwd=cwd)
    stdout, lines = Bounded(_MAX_BYTES), deque[str](maxlen=_KEPT_LINES)
    errors = LineReader(process.stderr, _MAX_BYTES, cut=True)

    def take(data: bytes) -> None:
        for raw in errors.split(data):
            lines.append(raw.decode("utf-8", "replace"))
            number = on_line(lines[-1]) if on_line is not None else None
            if number is not None and process.poll() is None:
                process.send(number)

    try:
        give_up_s = started + deadline_s
        # do not wait for other processes that keep the pipe open after the program has ended
        read = read_to_end(
            {process.stdout: stdout.take, process.stderr: take}, give_up_s, over=lambda: process.poll() is not None
        )
        late = not read or process.ends_within(max(TURN_S, give_up_s - monotonic())) is None
        if late:
            process.end(_OBEY_S)
        code = None if late else process.returncode
        return EndedChild(code, bytes(stdout), tuple(lines), monotonic() - started, late)
    finally:
        _end(process)


def _end(process: Child) -> None:
    """End the process if it runs; what it left behind stays, for step `left-behind` to find."""
    if process.poll() is None:
        process.end(_OBEY_S)
    process.close()


@contextmanager
def beside(
    argv: Sequence[str], *, environ: Mapping[str, str], cwd: Path, deadline_s: float, may_end_with: int | None = None
) -> Iterator[str]:
    """Run a program during the block; yields its first line of stdout, "" if none came in time.

    Closing its stdin asks it to end. Raise OSError if it cannot be started, and UserError if it wrote no line or
    ended by itself, because part of the block then ran without it. With the exit code `may_end_with` it may
    end before its first line.
    """
    process = Child(argv, stdin=PIPE, stdout=PIPE, env=environ, cwd=cwd)
    try:
        said = (LineReader(process.stdout).one(deadline_s) or b"").decode("utf-8", "replace").strip()
        yield said
        if not said:
            process.ends_within(TURN_S)  # its output has ended, so it is about to end
        code = process.poll()
        if code is None and not said:
            raise UserError(f"what was to run beside it had not begun after {deadline_s:.0f} s")
        if code is not None and (said or code != may_end_with):
            raise UserError(f"what was to run beside it ended too early: {ending_words(code)}")
    finally:
        process.close_stdin()
        process.ends_within(_OBEY_S)
        _end(process)


class NothingToRunOnError(UserError):
    """A program that was to load a GPU has nothing to run on: no torch, or a GPU that does not accept it."""


@contextmanager
def running(
    commands: Sequence[Sequence[str]], *, environ: Mapping[str, str], cwd: Path, deadline_s: float
) -> Iterator[tuple[Child, ...]]:
    """Programs that all work at the same time; yields them once each has written a line, and ends what is left.

    Raise NothingToRunOnError if one of them ends before, UserError if one takes too long, OSError if it does not start.
    """
    programs: list[Child] = []
    try:
        for command in commands:
            programs.append(Child(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ, cwd=cwd))
        give_up_s = monotonic() + deadline_s
        for program in programs:
            if LineReader(program.stdout).one(max(TURN_S, give_up_s - monotonic())):
                continue
            code = program.ends_within(TURN_S)
            if code is None:
                raise UserError(f"a program that loads a GPU had not begun after {deadline_s:.0f} s")
            said = Bounded(_SAID_BYTES)
            read_to_end({program.stderr: said.take}, monotonic() + TURN_S)
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise NothingToRunOnError(f"a program that loads a GPU {ending_words(code)}: {last[:200]}")
        yield tuple(programs)
    finally:
        for program in programs:
            _end(program)


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
                    own_python("acceptance.children", "main", msgspec.json.encode(order).decode()),
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


def marked_processes(variable: str, value: str) -> dict[int, str]:
    """The processes of this machine that were started with this environment variable: pid -> name."""
    found: dict[int, str] = {}
    expected = f"{variable}={value}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # it has ended, or belongs to another user
            if expected in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return found


def end_marked(variable: str, value: str, limit_s: float) -> None:
    """End all `marked_processes`: first by SIGTERM, then by SIGKILL, until none is left or the limit is reached."""
    began_s = monotonic()
    number = signal.SIGTERM
    while (left := marked_processes(variable, value)) and monotonic() - began_s < limit_s:
        send_signals(left, number)
        sleep(0.2)
        number = signal.SIGKILL if monotonic() - began_s > _OBEY_S else signal.SIGTERM
