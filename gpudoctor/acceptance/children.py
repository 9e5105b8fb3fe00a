"""Starts the processes of the acceptance run, hears them, and ends them; each carries the run's mark."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.process.ending import ending_words
from gpudoctor.process.pipes import TURN_S, Bounded, LineReader, read_to_end
from gpudoctor.process.spawn import PIPE, Child

MARK = "GPUDOCTOR_ACCEPTANCE"
_OBEY_S = 5.0  # a check that is told to end still writes its report and ends its ranks
_MAX_BYTES = 64 << 20
_KEPT_LINES = 40

OnLine = Callable[[str], "signal.Signals | None"]


class EndedChild(msgspec.Struct, frozen=True):
    """A child that ended, or was ended because it was late. `code` as Popen's; `said` its last lines on stderr."""

    code: int | None
    stdout: bytes
    said: tuple[str, ...]
    seconds: float
    late: bool

    @property
    def words(self) -> str:
        """How it ended, with the last thing it said."""
        how = f"did not end in {self.seconds:.0f} s" if self.late else ending_words(self.code)
        return f"{how}: {self.said[-1][:200]}" if self.said else how


def environment(mark: str, folder: Path) -> dict[str, str]:
    """What children of the run get: its mark, and a TMPDIR of their own."""
    return {**os.environ, MARK: mark, "TMPDIR": str(folder)}


def run_child(
    argv: Sequence[str], *, deadline_s: float, environ: Mapping[str, str], cwd: Path, on_line: OnLine | None = None
) -> EndedChild:
    """Run a program until its end, or end its process group: at the deadline, and on any exception. Raise OSError.

    `on_line` hears each line of stderr as it comes; a signal that it gives back is sent to the program.
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
        # whoever still holds the pipe when the program has ended is not the program
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
    """What one that has ended by itself left behind is for the step `left-behind` to see."""
    if process.poll() is None:
        process.end(_OBEY_S)
    process.close()


@contextmanager
def beside(
    argv: Sequence[str], *, environ: Mapping[str, str], cwd: Path, deadline_s: float, may_end_with: int | None = None
) -> Iterator[str]:
    """Have a program run while the block runs; it gives its first line of stdout, "" where none came in time.

    It is told to end by the end of its stdin. Raise OSError where it cannot be started, and UserError where
    it did not begin, or has ended by itself, so that a part of the block ran without it. With the exit code
    `may_end_with` it may end before its first line.
    """
    process = Child(argv, stdin=PIPE, stdout=PIPE, env=environ, cwd=cwd)
    try:
        said = (LineReader(process.stdout).one(deadline_s) or b"").decode("utf-8", "replace").strip()
        yield said
        if not said:
            process.ends_within(TURN_S)  # its output has ended, and so it does
        code = process.poll()
        if code is None and not said:
            raise UserError(f"what was to run beside it had not begun after {deadline_s:.0f} s")
        if code is not None and (said or code != may_end_with):
            raise UserError(f"what was to run beside it ended too early: {ending_words(code)}")
    finally:
        process.close_stdin()
        process.ends_within(_OBEY_S)
        _end(process)
